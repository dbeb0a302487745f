"""Everything that can happen next in a state."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.protocol import keeping, mishaps, operating, working
from tests.model.protocol.state import State
from tests.model.protocol.stepping import Step, World


def steps(world: World, state: State) -> Iterator[Step]:
    """All steps. The first calm one is what a run without faults does here, so this order is its schedule.

    Who hears, looks and decides comes first, then who ends a handler, then who takes a new job, then time.
    """
    yield from working.answers(state)
    yield from working.readers(world, state)
    yield from working.sessions(world, state)
    yield from keeping.verdicts(world, state)
    yield from working.heartbeats(state)
    yield from working.outcomes(world, state)
    yield from working.claims(world, state)
    yield from keeping.rounds(world, state)
    yield from operating.producers(world, state)
    yield from working.marks(world, state)
    yield from operating.operators(world, state)
    yield from mishaps.late(world, state)
    yield from mishaps.of_workers(state)
    yield from mishaps.of_jobs(state)
    yield from mishaps.of_redis(world, state)
