"""Each rule of the core protocol is needed: without it, what it prevents comes back, with a short trace."""

from __future__ import annotations

import pytest

from tests.model.protocol.explore import Exploration
from tests.model.protocol.rules import RULES, without
from tests.model.protocol.shown import COVERED, SHOWN
from tests.model.protocol.telling import lines

#: More states than any of these needs.
LIMIT = 20_000
#: Steps that a reader can follow.
SHORT = 18


@pytest.mark.parametrize("rule", SHOWN)
def test_without_the_rule_its_violation_comes_back(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    config, wrong = SHOWN[rule]

    result = Exploration(config, without(rule)).run(LIMIT)

    assert result.violation is not None, f"{config.name} without {rule}: nothing is wrong"
    number, text = RULES[rule]
    print(f"{number}: {text}. Without it: {result.violation.what}")
    print("\n".join(lines(result.violation.trace)))
    assert wrong in result.violation.what, capsys.readouterr().out
    assert len(result.violation.trace) <= SHORT


@pytest.mark.parametrize("rule", COVERED)
def test_a_rule_that_another_covers_is_missed_only_without_both(rule: str) -> None:
    by, (config, wrong) = COVERED[rule]

    assert Exploration(config, without(rule)).run().violation is None
    assert Exploration(config, without(rule, by)).run(only=wrong).violation is not None
