"""The incident note says who, when, what was seen and what was run, and no name in it is more than text."""

from __future__ import annotations

from dataclasses import replace

from streamworker.ops.runbook import Command, Kind, Step, diagnose, note
from streamworker.ops.runbook.note import Ran
from streamworker.postgres.entries import Action
from tests.unit.sights import ANN, HOSTILE, LATE, NOON, QUIET, URGENT, backlog, row, worst

BEFORE = diagnose(replace(QUIET, lanes=(LATE, URGENT), drain=backlog(9000)))
AFTER = diagnose(replace(QUIET, at=NOON + 90_000, lanes=(row("normal"), row("priority")), drain=backlog(40)))
THROTTLE = Command(Kind.CHANGE, ("throttle", "tenant:acme", "--rate", "5/s"), "acme floods")


def ran(output: str = "tenant:acme: 5/s\n", code: int = 0) -> Ran:
    return Ran(Step.THROTTLE, THROTTLE, NOON + 1000, code, output)


def test_it_has_figures_of_before_and_after() -> None:
    text = note.write(BEFORE, AFTER, [ran()], [], who=ANN)

    assert "# Incident: the backlog of shop\n" in text
    assert "- From 2026-07-24T12:00:00.000Z to 2026-07-24T12:01:30.000Z\n- By ann@ops\n" in text
    assert "| lane normal: jobs that wait | 4000 | 0 |" in text
    assert "| lane priority: oldest | 30s | - |" in text
    assert "| backlog | 9000 | 40 |" in text


def test_it_has_what_was_run_and_how_it_ended() -> None:
    text = note.write(BEFORE, AFTER, [ran(), ran("error: no such lane", 2)], [], who=ANN)

    assert "2026-07-24T12:00:01.000Z, step 3:\n\n    $ streamworker throttle tenant:acme --rate 5/s\n" in text
    assert "    tenant:acme: 5/s\n" in text
    assert "step 3, ended with 2:" in text


def test_a_long_output_is_cut() -> None:
    text = note.write(BEFORE, AFTER, [ran("line\n" * 50)], [], who=ANN)

    assert text.count("\n    line") == note.LINES
    assert "… and 38 lines more" in text


def test_it_has_what_the_audit_says() -> None:
    actions = [Action(NOON + 1000, ANN, "throttle", "tenant:acme", "5,1000,5 backlog acme | floods")]

    text = note.write(BEFORE, AFTER, [], actions, who=ANN)

    assert (
        "| 2026-07-24T12:00:01.000Z | ann@ops | throttle | tenant:acme | 5,1000,5 backlog acme \\| floods |"
    ) in text
    many = note.write(BEFORE, AFTER, [], actions * 500, who=ANN)
    assert "And 300 more." in many


def test_it_says_when_nothing_was_done() -> None:
    text = note.write(BEFORE, BEFORE, [], [], who=ANN)

    assert "## What was run\n\nNothing." in text
    assert "Nothing was changed." in text


def test_it_ends_with_what_is_in_force_and_what_people_have_to_write() -> None:
    text = note.write(BEFORE, diagnose(worst("acme")), [], [], who=ANN)

    assert "    $ streamworker resume task:acme --app shop" in text
    assert text.endswith("and by whom.\n")


def test_hostile_names_are_text() -> None:
    found = diagnose(worst(HOSTILE + "\n# Headline\n<script>alert(1)</script>"))

    text = note.write(found, found, [ran(f"{HOSTILE}\n```\n# Headline")], [], who=HOSTILE)

    assert text.replace("\n", "").isprintable()
    assert "\n# Headline" not in text
    assert "<script>" not in text
    assert "\\x1b" in text
