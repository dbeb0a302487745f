"""Lanes that a deploy removed, and what was left in them: for `doctor`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from streamworker.core.text import counted
from streamworker.ops.checks import Finding, ok, problem

#: Where jobs wait, by the counter's name, and how that is said.
_PLACES = {
    "queued": "queued",
    "turned": "behind a turnstile",
    "parked": "at a gate",
    "scheduled": "for their time",
    "backlog": "in the backlog",
}


def gone(stats: Mapping[str, int], declared: Collection[str], served: Collection[str]) -> set[str]:
    """Lanes in which jobs wait, and that no app has any more; none if no worker ever said which it has."""
    return _waiting(stats).keys() - {*declared, *served} if declared else set()


def left(stats: Mapping[str, int], lanes: Collection[str]) -> list[Finding]:
    """What waits in lanes that are `gone`: nobody serves them, or drains into them."""
    if not lanes:
        return [ok("lanes", "jobs wait only in lanes that an app has")]
    found = []
    for lane in sorted(lanes):
        places = _waiting(stats)[lane]
        jobs = counted(sum(places.values()), "job")
        shown = ", ".join(f"{count} {_PLACES[place]}" for place, count in places.items())
        found.append(
            problem(
                "lanes",
                f"no app has the lane {lane} any more, with {jobs} in it: {shown}",
                "declare it again until it is empty, App(lanes=…), or cancel them: "
                f"streamworker purge {lane} --parked --scheduled --deferred",
            )
        )
    return found


def _waiting(stats: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """How many wait, by lane and place; places with none are left out."""
    found: dict[str, dict[str, int]] = {}
    for name, count in stats.items():
        place, _, lane = name.partition(":")
        if lane and place in _PLACES and count > 0:
            found.setdefault(lane, {})[place] = count
    return found
