"""The router: a pure function from a job, the rules and the pressure to a lane."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.codec import PAYLOAD_LIMIT_BYTES
from streamworker.core.errors import ConfigurationError, InvalidArgument
from streamworker.core.lane import Lane, Pressure
from streamworker.core.router import Decision, Route, Router, Step, Subject

LANES = {"priority": Lane(accept=["pay", "refund"]), "normal": Lane(), "bulk": Lane(payload_limit=1_000_000)}
SLA = {"gold": ["acme", "globex"], "silver": ["initech"]}


def router(*routes: Route, **options: Any) -> Router:
    return Router(LANES, "normal", routes=routes, sla=SLA, **options)


def subject(task: str = "mail", own: str = "normal", **facts: Any) -> Subject:
    return Subject(task, own, **facts)


def test_without_rules_a_job_waits_where_its_task_says() -> None:
    assert router().decide(subject()) == Decision("normal")
    assert router().decide(subject("pay", "priority")) == Decision("priority")


def test_a_lane_that_the_producer_names_wins_over_the_rules() -> None:
    found = router(Route("bulk")).decide(subject(asked="normal"))

    assert found == Decision("normal")


@pytest.mark.parametrize(
    ("route", "fits", "fits_not"),
    [
        (Route("bulk"), [{}], []),
        (Route("bulk", task="mail"), [{}], [{"task": "mail.all"}]),
        (Route("bulk", task="report.*"), [{"task": "report.day"}, {"task": "report."}], [{"task": "report"}]),
        (Route("bulk", task=["mail", "report.*"]), [{}, {"task": "report.x"}], [{"task": "pay"}]),
        (Route("bulk", tenant="trial-*"), [{"tenant": "trial-7"}], [{"tenant": "acme"}, {"tenant": None}]),
        (Route("bulk", tenant="*"), [{"tenant": "acme"}], [{"tenant": None}]),
        (Route("bulk", sla="gold"), [{"tenant": "acme"}], [{"tenant": "initech"}, {"tenant": "x"}, {}]),
        (Route("bulk", size_above=100), [{"size": 101}], [{"size": 100}]),
        (
            Route("bulk", task="mail", tenant="acme"),
            [{"tenant": "acme"}],
            [{"tenant": "acme", "task": "pay"}, {}],
        ),
    ],
)
def test_a_rule_fits_when_all_that_it_says_is_so(
    route: Route, fits: list[dict[str, Any]], fits_not: list[dict[str, Any]]
) -> None:
    asked = router(route)

    for facts in fits:
        assert asked.decide(subject(**facts)) == Decision("bulk", "route-1"), facts
    for facts in fits_not:
        assert asked.decide(subject(**facts)) == Decision("normal"), facts


@pytest.mark.parametrize(
    ("asked_for", "now", "lane"),
    [
        ("high", Pressure.OK, "normal"),
        ("high", Pressure.HIGH, "bulk"),
        ("high", Pressure.OVER, "bulk"),
        ("over", Pressure.HIGH, "normal"),
        ("over", Pressure.OVER, "bulk"),
    ],
)
def test_a_rule_may_wait_for_the_pressure_of_the_jobs_own_lane(
    asked_for: str, now: Pressure, lane: str
) -> None:
    asked = router(Route("bulk", pressure=asked_for))

    assert asked.by_pressure
    assert asked.decide(subject(), {"normal": now}).lane == lane
    assert asked.decide(subject(), {"priority": Pressure.OVER}).lane == "normal"
    assert asked.decide(subject()).lane == "normal"


def test_the_first_rule_that_fits_decides() -> None:
    asked = router(
        Route("priority", task="pay"),
        Route("bulk", tenant="acme", name="acme"),
        Route("priority", tenant="*"),
    )

    assert asked.decide(subject(tenant="acme")) == Decision("bulk", "acme")
    assert asked.decide(subject("pay", tenant="acme")) == Decision("priority", "route-1")
    assert asked.decide(subject("refund", tenant="x")) == Decision("priority", "route-3")


def test_a_task_that_a_lane_does_not_accept_goes_to_its_own_lane_and_says_why() -> None:
    assert router().decide(subject(asked="priority")) == Decision("normal", "accept:priority")
    assert router().decide(subject(own="bulk", asked="priority")) == Decision("bulk", "accept:priority")
    assert router(Route("priority")).decide(subject()) == Decision("normal", "accept:priority")


def test_a_task_whose_own_lane_does_not_accept_it_goes_to_the_default_lane() -> None:
    assert router().decide(subject(own="priority")) == Decision("normal", "accept:priority")


def test_a_lane_that_nobody_declared_takes_all() -> None:
    """A producer without the code may know of lanes that this manifest does not."""
    assert router().decide(subject(asked="other")) == Decision("other")
    assert router().limit("other") == PAYLOAD_LIMIT_BYTES


def test_a_lane_says_how_large_its_jobs_may_be() -> None:
    assert router().limit("normal") == PAYLOAD_LIMIT_BYTES
    assert router().limit("bulk") == 1_000_000


def test_the_explanation_names_each_rule_that_was_looked_at() -> None:
    asked = router(
        Route("bulk", task="report.*", name="reports"),
        Route("bulk", sla="silver"),
        Route("bulk", size_above=100),
        Route("bulk", pressure="over"),
        Route("priority", sla="gold", tenant="*", name="gold"),
        Route("bulk"),
    )

    decision, steps = asked.explain(subject(tenant="acme", size=5))

    assert decision == Decision("normal", "accept:priority")
    assert steps == [
        Step("reports", "bulk", False, "the task is mail"),
        Step("route-2", "bulk", False, "the tenant's class is gold"),
        Step("route-3", "bulk", False, "the arguments have 5 bytes"),
        Step("route-4", "bulk", False, "the pressure of lane normal is ok"),
        Step("gold", "priority", True, "tenant *; class gold"),
        Step("accept", "priority", False, "lane priority does not accept task mail"),
        Step("default", "normal", True, "the lane of task mail"),
    ]


def test_the_explanation_of_a_named_lane_and_of_none() -> None:
    asked = router(Route("bulk", tenant="acme"))

    assert asked.explain(subject(asked="bulk"))[1] == [Step("asked", "bulk", True, "the producer named it")]
    assert asked.explain(subject())[1] == [
        Step("route-1", "bulk", False, "there is no tenant"),
        Step("own", "normal", True, "the lane of task mail"),
    ]


ROUTES = st.builds(
    Route,
    st.sampled_from(sorted(LANES)),
    task=st.none() | st.sampled_from(["mail", "pay", "m*"]),
    tenant=st.none() | st.sampled_from(["acme", "*"]),
    sla=st.none() | st.sampled_from(sorted(SLA)),
    size_above=st.none() | st.integers(0, 3),
    pressure=st.none() | st.sampled_from(["high", "over"]),
)
SUBJECTS = st.builds(
    Subject,
    st.sampled_from(["mail", "pay"]),
    st.sampled_from(sorted(LANES)),
    st.none() | st.sampled_from(sorted(LANES)),
    st.none() | st.sampled_from(["acme", "initech", "nobody"]),
    st.integers(0, 4),
)
PRESSURES = st.dictionaries(st.sampled_from(sorted(LANES)), st.sampled_from(Pressure))


@given(st.lists(ROUTES, max_size=5), SUBJECTS, PRESSURES)
def test_every_job_gets_a_lane_that_takes_it_and_the_explanation_ends_there(
    routes: list[Route], job: Subject, pressure: dict[str, Pressure]
) -> None:
    asked = router(*routes)

    decision, steps = asked.explain(job, pressure)

    assert decision == asked.decide(job, pressure)
    assert LANES[decision.lane].accepts(job.task)
    assert (steps[-1].lane, steps[-1].fits) == (decision.lane, True)
    assert len(decision.why.split()) <= 1
    assert (decision.lane == (job.asked or job.own)) or decision.why


@given(st.lists(ROUTES, max_size=5), SUBJECTS, PRESSURES)
def test_the_published_form_of_a_rule_decides_the_same(
    routes: list[Route], job: Subject, pressure: dict[str, Pressure]
) -> None:
    published = [Route(**route.raw()) for route in routes]

    assert router(*published).decide(job, pressure) == router(*routes).decide(job, pressure)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lane": "No Lane"}, "lane name"),
        ({"lane": "bulk", "name": "two words"}, "route's name"),
        ({"lane": "bulk", "task": ""}, "route's task"),
        ({"lane": "bulk", "task": "a*b"}, "only at its end"),
        ({"lane": "bulk", "tenant": []}, "route's tenant"),
        ({"lane": "bulk", "tenant": 7}, "route's tenant"),
        ({"lane": "bulk", "sla": "Gold!"}, "route's sla"),
        ({"lane": "bulk", "size_above": "64kB"}, "size_above"),
        ({"lane": "bulk", "pressure": "ok"}, '"high" or "over"'),
    ],
)
def test_a_rule_that_cannot_work_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises((ConfigurationError, InvalidArgument), match=named):
        Route(**options)


@pytest.mark.parametrize(
    ("routes", "sla", "named"),
    [
        ([Route("nowhere")], {}, "no lane of the app; it has: priority, normal, bulk"),
        ([Route("bulk", sla="gold")], {}, "nobody has"),
        ([Route("bulk", name="x"), Route("normal", name="x")], {}, "same name"),
        ([Route("bulk"), Route("normal", name="route-1")], {}, "same name"),
        ([], {"gold": ["acme"], "silver": ["acme"]}, "two classes"),
        ([], {"gold": "acme"}, "lists of tenants"),
        ([], {"gold": [7]}, "lists of tenants"),
        ([], {"gold": None}, "lists of tenants"),
    ],
)
def test_rules_that_do_not_fit_together_are_refused(routes: list[Route], sla: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Router(LANES, "normal", routes=routes, sla=sla)
