"""Which jobs ran while the event loop stood still."""

from __future__ import annotations

from collections.abc import Iterable

from streamworker.worker.running import Running

#: Seconds of lag that are worth a warning.
STALL = 1.0
#: Jobs that one warning names at most.
NAMED = 5


def suspects(held: Iterable[Running], since: float) -> list[Running]:
    """Jobs whose coroutine may have held the loop since then: begun, and not over before.

    What runs in a thread or process blocks nobody.
    """
    found = {
        running.key: running
        for running in held
        if running.handler is not None
        and running.thread is None
        and not running.away
        and (running.outcome is None or running.ended >= since)
    }
    # A handler that stood still cannot have been waiting: of many, those that have just ended come first.
    return sorted(found.values(), key=lambda running: -running.ended)


def describe(found: list[Running]) -> str:
    """Names for a warning."""
    if not found:
        return "no coroutine job ran here; look at the app's own tasks and callbacks"
    names = ", ".join(f"{running.task_name} ({running.claim.job_id})" for running in found[:NAMED])
    more = len(found) - NAMED
    return f"running: {names}" + (f" and {more} more" if more > 0 else "")
