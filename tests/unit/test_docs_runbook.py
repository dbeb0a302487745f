"""The runbook page has a section for each step, what it shows is what is said, and alerts lead to it."""

from __future__ import annotations

import re
from dataclasses import replace

import yaml

from streamworker.cli.walk import text_of
from streamworker.core.lane import BACKLOG
from streamworker.ops.runbook import AIM, TITLES, Kind, Step, diagnose
from streamworker.ops.runbook.sight import Crowd, Service
from streamworker.ops.runbook.whys import WHYS
from tests.unit.documentation import DOCS, REPOSITORY, check_generated, section
from tests.unit.documentation import text_of as page_text
from tests.unit.sights import LATE, QUIET, URGENT, backlog
from tests.unit.test_docs import anchors

PAGE = "how-to/runbook-backlog.md"
#: The section of each step, as alerts and dashboards know it.
SECTIONS = {
    Step.LANE: "Which lane",
    Step.DEPENDENCY: "Which dependency",
    Step.THROTTLE: "Admission",
    Step.CRITICAL: "The critical lane",
    Step.DRAIN: "Backlog",
    Step.RETRIES: "Retries",
    Step.LETTERS: "Dead letters",
    Step.REPLAY: "Replay",
    Step.NOTE: "Write it down",
}
#: Sections for what lies behind the steps.
BEHIND = {
    "which-task", "workers", "pauses-and-gates", "redis", "a-blocked-loop", "locks-and-duplicates",
    "mirror-and-outbox", "no-metrics",
}  # fmt: skip
INCIDENT = replace(
    QUIET,
    lanes=(replace(LATE, in_flight=30), replace(URGENT, in_flight=2)),
    crowds={"normal": Crowd({"acme": 3700, "": 300}), BACKLOG: Crowd()},
    services=(Service("carrier", frozenset({"update_shipment"}), ok=40, running=28, limit=64),),
    drain=backlog(50_000),
)


def anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def test_the_steps_are_listed() -> None:
    rows = [f"| {step.number} | [{TITLES[step]}](#{anchor(SECTIONS[step])}) | `{step}` |" for step in Step]

    check_generated(PAGE, "steps", "\n".join(["| step | | `--yes` |", "| --- | --- | --- |", *rows]))


def test_what_it_says_in_an_incident_is_shown() -> None:
    told = [text_of(each, *Kind) for each in diagnose(INCIDENT).steps[:5]]

    check_generated(PAGE, "walk", "\n".join(["```text", "\n\n".join([f"shop: {AIM}", *told]), "```"]))


def test_the_words_for_programs_are_listed() -> None:
    rows = [f"| `{step}` | `{why}` | {text} |" for step, whys in WHYS.items() for why, text in whys.items()]

    assert list(WHYS) == list(Step)
    check_generated(PAGE, "whys", "\n".join(["| step | `why` | |", "| --- | --- | --- |", *rows]))


def test_each_step_has_its_section() -> None:
    for step, heading in SECTIONS.items():
        text = section(page_text(PAGE), f"## {heading}")
        assert text.lstrip().startswith(f"*Step {step.number}, `{step}`.*"), heading
        assert "$ streamworker " in text, f"{heading} has no command"


def test_each_alert_leads_to_a_step_or_to_what_lies_behind_one() -> None:
    rules = yaml.safe_load((REPOSITORY / "prometheus" / "streamworker.rules.yml").read_text())
    leads = {
        rule["alert"]: rule["annotations"]["runbook_url"].partition("#")[2]
        for group in rules["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    steps = {anchor(heading) for heading in SECTIONS.values()}

    assert anchors(DOCS / PAGE) >= steps | BEHIND
    assert {name: to for name, to in leads.items() if to not in steps | BEHIND} == {}
    assert {anchor(SECTIONS[step]) for step in (Step.LANE, Step.DEPENDENCY, Step.DRAIN, Step.RETRIES)} <= set(
        leads.values()
    )


def test_the_page_names_no_section_twice() -> None:
    headings = re.findall(r"^## (.+)$", page_text(PAGE), re.MULTILINE)

    assert len(headings) == len(set(headings))
