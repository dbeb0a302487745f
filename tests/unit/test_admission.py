"""What lanes declare of admission and backlog, and how the router sends to the backlog."""

from __future__ import annotations

import pytest

from streamworker import App, ConfigurationError, InvalidArgument, Lane, Route, Worker
from streamworker.core.admission import drain_figures, high_water, rules
from streamworker.core.router import Router, Subject
from streamworker.request import Options, new_job
from streamworker.settings import read_lanes


def test_the_bounds_of_lanes_are_lines_for_the_script() -> None:
    lanes = {"priority": Lane(limit=10, overflow="reject"), "normal": Lane(limit=100), "bulk": Lane()}

    assert rules(lanes, Lane()) == "depth priority 10 reject\ndepth normal 100 backlog"
    assert rules({"normal": Lane()}, Lane(limit=5)) == "backlog normal 5 reject"
    assert rules({"normal": Lane()}, Lane()) == ""


def test_the_high_water_leaves_room_for_arrivals() -> None:
    assert high_water(Lane(limit=100)) == 50
    assert high_water(Lane(limit=1)) == 1
    assert high_water(Lane(limit=100, high_water=80)) == 80
    assert high_water(Lane()) == 1_000


def test_the_drain_has_a_rate_by_default() -> None:
    assert drain_figures(Lane()) == "100,1000,100"
    assert drain_figures(Lane(drain="300/m", burst=7)) == "300,60000,7"


@pytest.mark.parametrize(
    "lanes",
    [
        {"normal": Lane(), "backlog": Lane(reserved=1)},
        {"normal": Lane(), "backlog": Lane(accept=["pack"])},
        {"normal": Lane(), "backlog": Lane(drain="fast")},
        {"normal": Lane(), "backlog": Lane(burst=5)},
        {"normal": Lane(drain="1/s")},
        {"normal": Lane(limit=10, high_water=20)},
        {"backlog": Lane()},
    ],
)
def test_what_cannot_be_declared_is_refused(lanes: dict[str, Lane]) -> None:
    with pytest.raises(ConfigurationError):
        App("shop", lanes=lanes)


@pytest.mark.parametrize("lane", [{"limit": 0}, {"high_water": -1}, {"overflow": "drop"}])
def test_a_lane_refuses_what_is_no_bound(lane: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Lane(**lane)  # type: ignore[arg-type]


def test_bounds_from_the_environment() -> None:
    text = "normal limit=100 overflow=reject high_water=20; backlog drain=5/s burst=2"

    lanes = read_lanes({"STREAMWORKER_LANES": text})

    assert lanes["normal"] == Lane(limit=100, overflow="reject", high_water=20)
    assert lanes["backlog"] == Lane(drain="5/s", burst=2)


def test_every_app_has_a_backlog_and_no_worker_serves_it() -> None:
    app = App("shop")

    assert app.check_lane("backlog") == "backlog"
    assert "backlog" not in app.lanes
    with pytest.raises(InvalidArgument, match="served by no worker"):
        Worker(app, lanes=["backlog"])


ROUTES = [
    Route("backlog", task="report", name="reports"),
    Route("priority", tenant="acme", name="acme"),
]
ROUTER = Router({"priority": Lane(accept=["pay", "report"]), "normal": Lane()}, "normal", routes=ROUTES)


@pytest.mark.parametrize(
    ("subject", "lane", "backlog"),
    [
        (Subject("pack", "normal", "backlog"), "normal", "asked"),
        (Subject("pay", "normal", "backlog", "acme"), "priority", "asked"),  # what it would be otherwise
        (Subject("pack", "normal", "backlog", "acme"), "normal", "asked"),  # priority does not accept it
        (Subject("report", "priority"), "priority", "rule"),
        (Subject("report", "priority", "normal"), "normal", ""),  # the producer's word wins
        (Subject("tidy", "backlog"), "normal", "task"),
        (Subject("tidy", "backlog", "normal"), "normal", ""),
        (Subject("report", "backlog"), "normal", "rule"),
    ],
)
def test_who_is_sent_to_the_backlog_and_for_which_lane(subject: Subject, lane: str, backlog: str) -> None:
    decision = ROUTER.decide(subject)

    assert (decision.lane, decision.backlog) == (lane, backlog)
    assert ROUTER.explain(subject)[0] == decision


def test_the_explanation_says_which_lane_a_deferred_job_is_meant_for() -> None:
    _, steps = ROUTER.explain(Subject("tidy", "backlog"))

    fitting = [(step.rule, step.lane) for step in steps if step.fits]
    assert fitting == [("own", "backlog"), ("meant for", "normal")]


def test_a_request_for_the_backlog_carries_its_lane_and_why() -> None:
    job = new_job("pack", {}, Options.of(lane="backlog"), own="bulk")

    assert (job.lane, job.backlog) == ("bulk", "asked")
