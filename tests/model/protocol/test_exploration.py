"""While all rules hold, nothing is violated in any state, and from each of them a run without faults ends."""

from __future__ import annotations

import random

import pytest

from tests.model.protocol.__main__ import explore_all
from tests.model.protocol.explore import Exploration
from tests.model.protocol.faults import Config, catalogue, config_of
from tests.model.protocol.rules import Rules
from tests.model.protocol.shown import SHOWN
from tests.model.protocol.state import State
from tests.model.protocol.stepping import World
from tests.model.protocol.steps import steps
from tests.model.protocol.symmetry import Keys, swap_jobs, swap_workers
from tests.model.protocol.telling import lines
from tests.model.protocol.walking import EVERYTHING, walk

#: Random walks with everything; `python -m tests.model.protocol --walks 10000` makes more.
WALKS = 30
#: What is explored in a second or two with all outcomes. `python -m tests.model.protocol` explores the rest.
SMALL = (
    *("crash", "group", "deletion", "expiry", "retention", "read", "cancel", "replay", "deadline"),
    *(
        "resend",
        "keyed+error",
        "killer+crash",
        "one-slot+crash",
        "one-job+loss+crash",
        "one-job+refusal+error",
    ),
)
#: And what shows a rule when it is taken out: with few outcomes.
CONFIGS = {config.name: config for config, _ in SHOWN.values()} | {name: config_of(name) for name in SMALL}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_nothing_is_violated(config: Config) -> None:
    result = Exploration(config, Rules()).run()

    assert result.violation is None, "\n".join([result.violation.what, *lines(result.violation.trace)])
    assert result.complete


def test_nothing_is_violated_with_all_faults_at_once() -> None:
    world = World(config_of(EVERYTHING), Rules())

    for number in range(WALKS):
        violation = walk(world, str(number), 60)
        assert violation is None, "\n".join([violation.what, *lines(violation.trace)])


def test_an_exploration_that_reached_its_limit_is_not_called_complete() -> None:
    result = Exploration(config_of("crash"), Rules()).run(100)

    assert result.states >= 100
    assert not result.complete


@pytest.mark.parametrize(
    ("name", "off", "limit", "status", "says"),
    [
        ("cancel", [], None, 0, "complete"),
        ("cancel", [], 10, 0, "limit reached"),
        (
            "group",
            ["give_back"],
            None,
            1,
            "VIOLATED: job 0 is claimed, and its entry is gone",
        ),
    ],
)
def test_the_command_says_how_it_ended(
    name: str,
    off: list[str],
    limit: int | None,
    status: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert explore_all([config_of(name)], off, limit, None) == status

    assert says in capsys.readouterr().out


def test_each_configuration_of_the_catalogue_has_its_own_name() -> None:
    names = catalogue()

    assert len(names) == len(set(names))
    assert [config_of(name).name for name in names] == names


def states_of_walks(name: str, walks: int, length: int) -> list[State]:
    config = config_of(name)
    found = []
    for seed in range(walks):
        dice = random.Random(seed)
        state = config.start()
        for _ in range(length):
            possible = list(steps(World(config, Rules()), state))
            if not possible:
                break
            state = dice.choice(possible).draft.freeze()
            found.append(state)
    return found


def test_states_that_differ_in_names_only_are_one() -> None:
    keys = Keys(jobs_alike=True)

    for state in states_of_walks("loss+read+crash+pause+refusal+two-calls", 20, 30):
        key = keys.of(state)
        assert keys.of(swap_jobs(state)) == key
        assert keys.of(swap_workers(state)) == key
        assert keys.of(swap_workers(swap_jobs(state))) == key
        assert swap_jobs(swap_jobs(state)) == state
        assert swap_workers(swap_workers(state)) == state
