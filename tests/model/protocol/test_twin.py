"""The protocol model and the readable model of the scripts say the same, wherever a walk goes."""

from __future__ import annotations

import random

import pytest

from tests.model.protocol.faults import config_of
from tests.model.protocol.rules import Rules, without
from tests.model.protocol.stepping import Label, World
from tests.model.protocol.steps import steps
from tests.model.protocol.telling import lines
from tests.model.protocol.twin import Twin

WALKS, LENGTH = 40, 40
#: Everything but scripts that are cut off, of which the readable model knows nothing.
CONFIGS = (
    "loss+loss+crash+pause",
    "loss+read+group+outage",
    "deletion+expiry+refusal+cancel",
    "deadline+replay+pause+loss",
    "killer+loss",
    "keyed+resend+replay+retention",
    "one-slot+loss+read+counter",
    "delayed+snoozes+cancel+crash",
)


def walk(world: World, seed: str) -> tuple[list[Label], list[str]]:
    """A random walk until both models differ: its steps, and the differences."""
    dice = random.Random(seed)
    state = world.config.start()
    twin = Twin(world, state)
    trace: list[Label] = []
    for _ in range(LENGTH):
        possible = [step for step in steps(world, state) if twin.can_follow(state, step.label)]
        if not possible:
            break
        label, draft, _ = dice.choice(possible)
        trace.append(label)
        twin.follow(state, label)
        state = draft.freeze()
        twin.adopt(state)
        found = list(twin.differences(state))
        if found:
            return trace, found
    return trace, []


@pytest.mark.parametrize("name", CONFIGS)
def test_both_models_go_the_same_way(name: str) -> None:
    world = World(config_of(name), Rules())
    followed = 0

    for number in range(WALKS):
        trace, found = walk(world, f"{name} {number}")
        assert not found, "\n".join([*lines(trace), *found])
        followed += len(trace)

    assert followed > 5 * WALKS


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("settled", "loss"),
        ("session", "loss"),
        ("give_back", "group"),
        ("flag", "cancel"),
    ],
)
def test_a_model_without_a_rule_goes_another_way(rule: str, name: str) -> None:
    world = World(config_of(name), without(rule))

    assert any(walk(world, str(number))[1] for number in range(20 * WALKS))
