"""Which tick of a cron was its last, in whatever order Postgres tells of them."""

from __future__ import annotations

from itertools import permutations

from streamworker.postgres.ticks import _note


def test_the_newest_tick_of_each_cron_is_noted_whichever_comes_last() -> None:
    told = [("daily", "a", 1_000), ("daily", "b", 3_000), ("daily", "c", 2_000), ("hourly", "d", 500)]
    for order in permutations(told):
        last: dict[str, tuple[int, str]] = {}
        for row in order:
            _note(last, [row])
        assert last == {"daily": (3_000, "b"), "hourly": (500, "d")}
