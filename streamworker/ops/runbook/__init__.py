"""The runbook for a backlog that grows: nine steps, each with what is seen and the commands that help."""

from __future__ import annotations

from streamworker.ops.runbook import closing, harm, supply
from streamworker.ops.runbook.answer import AIM, TITLES, Command, Diagnosis, Kind, State, Told
from streamworker.ops.runbook.case import judge
from streamworker.ops.runbook.sight import Sight
from streamworker.ops.runbook.whys import Step

__all__ = ["AIM", "TITLES", "Command", "Diagnosis", "Kind", "Sight", "State", "Step", "Told", "diagnose"]


def diagnose(sight: Sight, critical: str | None = None) -> Diagnosis:
    """The nine steps for what was seen: pure, so the same figures always give the same advice."""
    case = judge(sight, critical)
    steps = (
        supply.lane(case),
        harm.dependency(case),
        supply.throttle(case),
        supply.critical(case),
        supply.drain(case),
        harm.retries(case),
        harm.letters(case),
        harm.replay(case),
        closing.note(case),
    )
    return Diagnosis(sight, case.critical, steps)
