"""The page about the protocol model names each of its rules, and where the lack of it shows."""

from __future__ import annotations

import re

from tests.model.protocol.faults import TRAITS, Fault
from tests.model.protocol.rules import RULES
from tests.model.protocol.shown import COVERED, SHOWN
from tests.unit.documentation import check_generated, first_column, section, text_of

PAGE = "explanation/the-model.md"


def test_the_table_of_rules_is_the_models() -> None:
    rows = ["| rule | | says | missed in |", "| --- | --- | --- | --- |"]
    for name, (number, text) in RULES.items():
        config = SHOWN[name].config if name in SHOWN else COVERED[name][1].config
        rows.append(f"| `{name}` | {number} | {text} | `{config.name}` |")

    check_generated(PAGE, "rules", "\n".join(rows))


def test_each_fault_and_trait_is_described() -> None:
    modelled = section(text_of(PAGE), "## What is modelled")

    assert set(first_column(modelled)) == {fault.name.lower() for fault in Fault}
    assert set(re.findall(r"`([a-z-]+)`", modelled[modelled.index("Traits") :])) == set(TRAITS)
