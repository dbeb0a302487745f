"""Random walks, for more faults at once than can be explored."""

from __future__ import annotations

import random

from tests.model.protocol.explore import Violation
from tests.model.protocol.judge import over, wrong
from tests.model.protocol.state import State
from tests.model.protocol.stepping import Label, World
from tests.model.protocol.steps import steps

#: Everything at once.
EVERYTHING = (
    "loss+loss+loss+crash+crash+error+error+pause+pause+group+deletion+outage+expiry+counter+read+read+refusal"
    "+cancel+replay+fails"
)
#: Steps of a run without faults in which all must be over.
ENOUGH = 200


def walk(world: World, seed: str, length: int) -> Violation | None:
    """At random for so many steps, then without faults to the end."""
    dice = random.Random(seed)
    state = world.config.start()
    trace: list[Label] = []
    for _ in range(length):
        possible = list(steps(world, state))
        if not possible:
            break
        label, draft, _ = dice.choice(possible)
        trace.append(label)
        state = draft.freeze()
        what = draft.wrong or wrong(state, world.config)
        if what is not None:
            return Violation(what, trace, state)
    return _to_the_end(world, state, trace)


def _to_the_end(world: World, state: State, trace: list[Label]) -> Violation | None:
    for _ in range(ENOUGH):
        step = next((step for step in steps(world, state) if step.calm), None)
        if step is None:
            break
        trace.append(step.label)
        state = step.draft.freeze()
        what = step.draft.wrong or wrong(state, world.config)
        if what is not None:
            return Violation(what, trace, state)
    if over(state):
        return None
    return Violation("this is where a run without faults stops, and not all is over", trace, state)
