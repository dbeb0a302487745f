"""Lanes and routes of an app: where its jobs wait, and what a lane says for its tasks."""

from __future__ import annotations

from typing import Any

import pytest

from streamworker import App, ConfigurationError, Context, Lane, PayloadTooLarge, Retry, Route
from streamworker.core.codec import PAYLOAD_LIMIT_BYTES
from streamworker.policy import DEFAULT_TIMEOUT
from streamworker.store import routing
from streamworker.store.manifest import Declaration


async def pay(ctx: Context, text: str = "") -> None: ...


async def report(ctx: Context, text: str = "") -> None: ...


def app(**options: Any) -> App:
    lanes = {"priority": Lane(accept=["pay"]), "normal": Lane(), "bulk": Lane(payload_limit=1_000_000)}
    return App("shop", **{"lanes": lanes, **options})


def test_a_job_waits_where_its_task_says_unless_a_rule_says_otherwise() -> None:
    shop = app(routes=[Route("bulk", tenant="acme", name="acme")])
    task = shop.task(report)

    assert (task.call().job.lane, task.call().job.route) == ("normal", "")
    routed = task.options(tenant="acme").call().job
    assert (routed.lane, routed.route) == ("bulk", "acme")
    named = task.options(tenant="acme", lane="normal").call().job
    assert (named.lane, named.route) == ("normal", "")


def test_a_task_that_priority_does_not_accept_goes_to_its_own_lane_and_the_job_says_why() -> None:
    """Issue 5: `accept` keeps `priority` from becoming a second `normal`."""
    shop = app()
    task = shop.task(report)

    job = task.options(lane="priority").call().job

    assert (job.lane, job.route) == ("normal", "accept:priority")
    assert shop.task(lane="priority")(pay).call().job.lane == "priority"


def test_a_task_whose_own_lane_does_not_accept_it_is_warned_of() -> None:
    shop = app()
    task = shop.task(lane="priority")(report)

    assert (task.call().job.lane, task.call().job.route) == ("normal", "accept:priority")
    assert [line for line in shop.warnings() if "does not accept" in line] == [
        "task report declares lane priority, which does not accept it: its jobs go to normal"
    ]


def test_a_task_that_no_lane_would_take_is_refused() -> None:
    shop = App("shop", lanes={"priority": Lane(accept=["pay"])})
    shop.task(pay)

    with pytest.raises(ConfigurationError, match=r"report: neither its lane .* accepts it"):
        shop.task(report)


def test_rules_are_checked_when_the_app_is_made() -> None:
    with pytest.raises(ConfigurationError, match="no lane of the app"):
        app(routes=[Route("nowhere")])


def test_a_lane_says_how_large_its_jobs_may_be() -> None:
    shop = app(routes=[Route("bulk", size_above=PAYLOAD_LIMIT_BYTES)])
    task = shop.task(report)

    assert task.call("x" * 300_000).job.lane == "bulk"
    with pytest.raises(PayloadTooLarge) as large:
        task.options(lane="normal").call("x" * 300_000)
    assert large.value.limit == PAYLOAD_LIMIT_BYTES
    with pytest.raises(PayloadTooLarge) as larger:
        task.call("x" * 1_000_000)
    assert larger.value.limit == 1_000_000


def test_a_lane_has_defaults_for_its_tasks() -> None:
    retry = Retry.fixed(2, 5)
    shop = App("shop", lanes={"slow": Lane(timeout="1h", retry=retry), "normal": Lane()})

    slow = shop.task(lane="slow", name="slow")(report).policy
    own = shop.task(lane="slow", name="own", timeout=5, retry=Retry.never())(report).policy
    normal = shop.task(report).policy

    assert (slow.timeout, slow.retry) == (3600.0, retry)
    assert (own.timeout, own.retry) == (5.0, Retry.never())
    assert (normal.timeout, normal.retry) == (DEFAULT_TIMEOUT, Retry())
    assert [each.of_lane for each in (slow, own, normal)] == [("retry", "timeout"), (), ()]
    declared = shop.declarations()["slow"]
    assert Declaration.decode("slow", b"1 " + declared.encode()).of_lane == ("retry", "timeout")


def test_the_published_rules_decide_as_the_app_does() -> None:
    """D17: a producer without the code bypasses nothing. A function that accepts is asked for each task."""
    shop = App(
        "shop",
        lanes={"priority": Lane(accept=lambda task: task == "pay"), "main": Lane(payload_limit=10)},
        routes=[Route("priority", sla="gold"), Route("main", task="re*", size_above=5)],
        sla={"gold": ["acme"]},
    )

    shop.task(pay)
    shop.task(report)
    read = routing.decode(routing.encode(shop.router, shop.tasks))

    assert (read.default, read.sla) == ("main", shop.router.sla)
    assert [route.raw() for route in read.routes] == [route.raw() for route in shop.router.routes]
    assert read.accepts("priority", "pay")
    assert not read.accepts("priority", "report")
    assert not read.accepts("priority", "a task that nobody published")
    assert (read.limit("main"), read.limit("priority")) == (10, PAYLOAD_LIMIT_BYTES)
    assert routing.encode(read, shop.tasks) == routing.encode(shop.router, shop.tasks)


def test_a_rule_of_a_newer_version_that_says_more_is_left_out() -> None:
    """What it asks for beyond what we know would be taken for fulfilled."""
    published = routing.encode(app(routes=[Route("bulk", task="report", name="old")]).router, [])
    newer = published.replace(b'"lane":"bulk"', b'"lane":"bulk","moon":"full"')
    assert newer != published

    assert [route.name for route in routing.decode(published).routes] == ["old"]
    assert routing.decode(newer).routes == ()
