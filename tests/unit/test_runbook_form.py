"""Where the marks of the runbook are, and that each command it proposes can be typed and names its reason."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from streamworker.ops.overload import Rate
from streamworker.ops.runbook import Kind, Step, diagnose
from streamworker.ops.runbook.held import way_back_of
from streamworker.ops.runbook.sight import Crowd, Held, Letters, Retries, Sight
from tests.unit.sights import (
    ANN,
    HOSTILE,
    LATE,
    QUIET,
    backlog,
    cause,
    pause,
    row,
    service,
    worst,
)
from tests.unit.test_docs import resolve


@pytest.mark.parametrize(
    ("step", "below", "above"),
    [
        (
            Step.LANE,
            {"lanes": (row("normal", ready=1, oldest=10.0),)},
            {"lanes": (row("normal", ready=1, oldest=10.1),)},
        ),
        (
            Step.LANE,
            {"lanes": (row("normal", ready=99, target=None, came_in=9.0),)},
            {"lanes": (row("normal", ready=100, target=None, came_in=9.0),)},
        ),
        (
            Step.DEPENDENCY,
            {"lanes": (LATE,), "services": (service(running=19),)},
            {"lanes": (LATE,), "services": (service(running=20),)},
        ),
        (
            Step.DEPENDENCY,
            {"services": (service(ok=81, failed=19),)},
            {"services": (service(ok=80, failed=20),)},
        ),
        (
            Step.DEPENDENCY,
            {"services": (service(failed=9),)},
            {"services": (service(failed=10),)},
        ),
        (  # by its own breaker, where workers declare one
            Step.DEPENDENCY,
            {"services": (service(ok=11, failed=89, share=0.9, fewest=20),)},
            {"services": (service(ok=10, failed=90, share=0.9, fewest=20),)},
        ),
        (
            Step.DEPENDENCY,
            {"services": (service(failed=19, share=0.9, fewest=20),)},
            {"services": (service(failed=20, share=0.9, fewest=20),)},
        ),
        (
            Step.THROTTLE,
            {"lanes": (replace(LATE, came_in=1.0),), "crowds": {"normal": Crowd({"acme": 2000})}},
            {"lanes": (replace(LATE, came_in=1.0),), "crowds": {"normal": Crowd({"acme": 2001})}},
        ),
        (
            Step.RETRIES,
            {"retries": Retries(49, 49, {("ship", "boom"): 49})},
            {"retries": Retries(50, 50, {("ship", "boom"): 50})},
        ),
        (
            Step.RETRIES,
            {"retries": Retries(500, 5000, {("ship", "boom"): 124})},
            {"retries": Retries(500, 5000, {("ship", "boom"): 125})},
        ),
        (
            Step.LETTERS,
            {"letters": Letters(19, 0.4, (cause("ship", "boom", 19),))},
            {"letters": Letters(20, 0.4, (cause("ship", "boom", 20),))},
        ),
        (Step.LETTERS, {"letters": Letters(5, 0.4)}, {"letters": Letters(5, 0.5)}),
    ],
)
def test_a_mark_is_passed_where_it_is_and_not_before(
    step: Step, below: dict[str, Any], above: dict[str, Any]
) -> None:
    calm = {"quiet", "well", "nothing_to_cut", "calm", "some"}

    assert diagnose(replace(QUIET, **below)).told(step).why in calm
    assert diagnose(replace(QUIET, **above)).told(step).why not in calm


def test_every_change_names_its_app_and_its_reason() -> None:
    found = diagnose(worst("ship"))

    changes = [command for told in found.steps for command in told.of(Kind.CHANGE)]
    assert len(changes) == 4
    for command in changes:
        said: Mapping[str, str] = dict(zip(command.words, command.words[1:], strict=False))
        assert said["--app"] == "shop"
        assert said["--reason"].startswith("runbook: ")


@pytest.mark.parametrize(
    "sight",
    [
        worst("ship"),
        replace(worst("ship"), services=(), letters=Letters(9, 0.0, (cause("mail", "boom", 9),))),
        replace(worst("ship"), services=(service(running=30, limit=30),), least=1),
        replace(QUIET, drain=backlog(900, on=False)),
        replace(QUIET, drain=backlog(900, paused=True)),
        replace(QUIET, drain=backlog(900, rate=Rate(50, 1000, 50))),
        replace(QUIET, lanes=(LATE, row("priority")), drain=backlog(900)),
        replace(QUIET, lanes=(row("priority", paused=True),), pauses=(pause("lane:priority"),)),
        replace(QUIET, held=tuple(
            Held("x", ANN, "-", undo)
            for topic in ("pause", "limit", "throttle", "drain", "slots", "retries", "breaker")
            if (undo := way_back_of(topic, "normal")) is not None
        )),
    ],
)  # fmt: skip
def test_every_command_can_be_typed(sight: Sight) -> None:
    found = [command for told in diagnose(sight).steps for command in told.commands]

    assert found
    for each in found:
        command, arguments = resolve(list(each.words))
        command.make_context(command.name, arguments)


def test_a_command_is_shown_as_a_shell_takes_it() -> None:
    for told in diagnose(worst("o'brien")).steps:
        for command in told.commands:
            assert shlex.split(command.line) == ["streamworker", *command.words]


def test_names_that_no_command_line_can_carry_are_in_none() -> None:
    for told in diagnose(worst(HOSTILE)).steps:
        for command in told.commands:
            assert not any(HOSTILE in word for word in command.words)
            assert command.line.isprintable()


def test_the_same_figures_always_give_the_same_advice() -> None:
    assert diagnose(worst("x")).json() == diagnose(worst("x")).json()
    assert json.loads(json.dumps(diagnose(worst(HOSTILE)).json()))["steps"][0]["number"] == 1
