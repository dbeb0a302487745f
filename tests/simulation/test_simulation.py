"""Seeded histories of workers, producers and faults: whatever happens, the checker finds nothing wrong.

`python -m tests.simulation SEED --trace` runs one again and says what happened in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.chaos.history import FaultKind
from tests.simulation.stage import Stage

#: How many histories, and which is the first.
SEEDS = int(os.environ.get("STREAMWORKER_SEEDS", "100"))
FIRST = int(os.environ.get("STREAMWORKER_FIRST_SEED", "0"))

#: What the storms are made of, as the checker knows it.
STRIKING = {*FaultKind} - {FaultKind.NETWORK}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


@pytest.mark.timeout(120 + SEEDS)
def test_no_seed_loses_a_job_or_records_two_outcomes(stage: Stage) -> None:
    starts, faults, gates, paused = 0, set[FaultKind](), set[str](), 0
    for seed in range(FIRST, FIRST + SEEDS):
        result = stage.run(seed)
        assert not result.wrong, (
            f"seed {seed}: {'; '.join(result.wrong)} (python -m tests.simulation {seed} --trace)"
        )
        starts += len(result.history.starts)
        faults |= {fault.kind for fault in result.history.faults}
        gates |= {name.split(":")[0] for start in result.history.starts for name in start.holds}
        paused += len(result.history.pauses)

    assert starts > SEEDS, "the histories are empty"
    assert faults >= STRIKING, "something never went wrong"
    assert gates == {"entity", "concurrency", "rate", "pause"}, "some gate was passed by nobody"
    assert paused > SEEDS / 10, "nobody pauses anything"


def test_a_seed_does_the_same_every_time(stage: Stage) -> None:
    first, between, again = (stage.run(seed) for seed in (FIRST + 7, FIRST + 8, FIRST + 7))

    assert first.trace == again.trace
    assert first.trace != between.trace
