"""The collector leaves alone what was there, and still finds what comes later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from streamworker.core import garbage


@pytest.fixture
def collector() -> Iterator[None]:
    """As Python has it, and afterwards as it was."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


class Ring:
    """Refers to itself, so that only the collector finds it."""

    def __init__(self) -> None:
        self.next = self


@pytest.mark.usefixtures("collector")
def test_what_is_there_is_left_alone_and_later_cycles_are_found() -> None:
    old = Ring()
    before = weakref.ref(old)
    garbage.settle_down(1000)
    del old
    later = weakref.ref(Ring())

    made = [[number] for number in range(3000)]

    assert made
    assert later() is None
    gc.collect()
    assert before() is not None, "it is not even looked at"
    assert gc.get_threshold()[0] == 1000


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("chosen", [0, 2000])
def test_what_somebody_has_chosen_stands(chosen: int) -> None:
    gc.set_threshold(chosen)

    garbage.settle_down(1000)

    assert gc.get_threshold()[0] == chosen
