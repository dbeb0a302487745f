"""What a purge is about, and how near the number has to be that somebody said."""

from __future__ import annotations

import pytest

from streamworker.core.errors import InvalidArgument
from streamworker.ops import purge as act


@pytest.mark.parametrize(
    ("count", "found", "near"),
    [(0, 0, True), (9, 10, False), (10, 11, True), (10, 8, False), (1000, 1100, True)],
)
def test_how_near_a_count_has_to_be(count: int, found: int, near: bool) -> None:
    assert act.agrees(count, found) is near


def test_a_selection_is_told_in_one_word() -> None:
    which = act.Selection("normal", "add", "acme", parked=True)

    assert which.describe() == "task=add;tenant=acme;parked"
    with pytest.raises(InvalidArgument):
        act.Selection("normal", tenant="a b")
