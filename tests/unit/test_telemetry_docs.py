"""The page on metrics says what there is."""

from __future__ import annotations

import pytest

from streamworker.telemetry.catalogue import CATALOGUE, Scope, Spec, of_scope
from streamworker.telemetry.labels import MAX_CODES, MAX_GATES, MAX_LOCKS, MAX_TASKS
from streamworker.telemetry.status import SILENCE_BORNE, STALLED_AFTER
from tests.unit.documentation import check_generated, text_of


def row(spec: Spec) -> str:
    """One metric of the table."""
    said = spec.help
    for label, values in spec.values.items():
        listed = ", ".join(f"`{value}`" for value in values)
        said += f" {label}: {listed}."
    return f"| `{spec.name}` | {spec.kind} | {', '.join(spec.labels)} | {said} |"


@pytest.mark.parametrize("scope", list(Scope))
def test_the_tables_of_metrics_are_the_catalogue(scope: Scope) -> None:
    lines = ["| metric | type | labels | what |", "| --- | --- | --- | --- |", *map(row, of_scope(scope))]

    check_generated("reference/metrics.md", f"metrics of the {scope}", "\n".join(lines))


def test_the_figures_on_the_page_are_those_of_the_code() -> None:
    text = text_of("reference/metrics.md")

    assert f"has not come round for {STALLED_AFTER:g} s" in text
    assert f"(at least {SILENCE_BORNE:g} s)" in text
    assert f"{MAX_TASKS} at most" in text
    assert f"{MAX_CODES} at most" in text
    assert f"{MAX_LOCKS} kinds of locks" in text
    assert f"{MAX_GATES} of gates" in text


def test_every_help_is_a_sentence_and_every_name_is_told_once() -> None:
    for spec in CATALOGUE:
        assert spec.help.endswith("."), spec.name
        assert "|" not in spec.help, spec.name
    assert len({spec.name for spec in CATALOGUE}) == len(CATALOGUE)
