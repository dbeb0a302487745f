"""What must hold in every state, and what must be true when all is over.

Steps are judged where they happen (`Draft.blame`): an illegal edge, a second outcome of an attempt, one that
is accepted under a stale fence, a recovery from a worker that lives, a claim that its worker holds already.
"""

from __future__ import annotations

from tests.model.protocol.faults import Config
from tests.model.protocol.state import (
    ACCEPTED,
    HELD,
    MAX_ATTEMPTS,
    MAX_STARTS,
    MAX_STRIKES,
    TERMINAL,
    UNKNOWN,
    WAITING,
    Aside,
    Record,
    State,
)


def wrong(state: State, config: Config) -> str | None:
    """The first thing that must not be, or None."""
    for job, record in enumerate(state.records):
        aside = state.asides[job]
        found = _no_record(aside) if record is None else _of_record(record, aside)
        if found is not None:
            return f"job {job} {found}"
    if (
        config.keyed
        and sum(record is not None and record.status not in TERMINAL for record in state.records) > 1
    ):
        return "both jobs are open, and they have the same key"
    killer, innocent = state.records[0], state.records[1]
    # A replay gives the killer another life, which nobody knows to be one.
    lives = 1 if killer is None else 1 + killer.epoch
    if config.only_the_killer_strikes and innocent is not None and innocent.strikes > lives:
        return "job 1 was struck twice, and it was job 0 that killed"
    return None


def _no_record(aside: Aside) -> str | None:
    if aside.told == ACCEPTED and not aside.expired:
        return "was accepted, and has no record"
    return None


def _of_record(record: Record, aside: Aside) -> str | None:
    if not 0 <= record.attempt <= record.starts <= MAX_STARTS:
        return f"had {record.attempt} attempts in {record.starts} starts"
    if record.attempt > MAX_ATTEMPTS or record.strikes > MAX_STRIKES:
        return f"had {record.attempt} attempts and {record.strikes} strikes"
    if aside.deleted:
        return None  # it may be nowhere until it is found
    if record.status in WAITING and record.entry <= 0 and not (aside.scheduled and aside.parked):
        return f"is lost: {record.status}, and neither in a stream nor in the schedule"
    if record.status in HELD and record.entry <= 0:
        return f"is {record.status}, and its entry is gone before its time"
    return None


def over(state: State) -> bool:
    """Every accepted job is terminal, and nothing is left of it where it would be found again."""
    return (
        all(record is None or record.status in TERMINAL for record in state.records)
        and all(aside.told != UNKNOWN and not aside.scheduled for aside in state.asides)
        and not state.entries
        and not any(any(worker.claims) or worker.answers for worker in state.workers)
        and not any(state.candidates)
        and (state.key is None or not state.key[1] or state.records[state.key[0]] is None)
    )
