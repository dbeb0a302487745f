"""Lanes, routes and classes from the environment; what code says wins."""

from __future__ import annotations

import pytest

from streamworker import App, ConfigurationError, Context, InvalidArgument, Lane, Route
from streamworker.settings import (
    Endpoint,
    read,
    read_endpoint,
    read_expected_workers,
    read_lanes,
    read_routes,
    read_sla,
)

LANES = "STREAMWORKER_LANES"
ROUTES = "STREAMWORKER_ROUTES"
SLA = "STREAMWORKER_SLA"


async def handler(ctx: Context) -> None: ...


def test_a_variable_that_ends_with_its_files_last_line_is_read_without_it() -> None:
    """As a secret does that was made with `echo`, or mounted."""
    environ = {
        "STREAMWORKER_NAMESPACE": "shop\n",
        "STREAMWORKER_REDIS_URL": "redis://host/0\n",
        "STREAMWORKER_POSTGRES_DSN": " postgresql://u@h/db\r\n",
        "STREAMWORKER_LEASE": "20s\n",
        "STREAMWORKER_DLQ_MAX_AGE": "1d\n",
        "STREAMWORKER_DLQ_MAX_COUNT": "500\n",
        "STREAMWORKER_WORKERS_EXPECTED": "4\n",
        "STREAMWORKER_METRICS_PORT": "9100\n",
        "STREAMWORKER_METRICS_HOST": "0.0.0.0\n",
    }

    found = read("app", environ=environ)

    assert (found.namespace, found.redis_url, found.lease) == ("shop", "redis://host/0", 20.0)
    assert found.postgres_dsn == "postgresql://u@h/db"
    assert (found.dlq_max_age, found.dlq_max_count) == (86_400.0, 500)
    assert read_expected_workers(environ=environ) == 4
    assert read_endpoint(environ=environ) == Endpoint("0.0.0.0", 9100)


@pytest.mark.parametrize("link", ["tcp://10.0.75.166:9100", "udp://10.0.75.166:9100"])
def test_a_service_of_kubernetes_is_no_port(link: str) -> None:
    """Beside a Service named streamworker-metrics each pod has this variable, asked for or not."""
    assert read_endpoint(environ={"STREAMWORKER_METRICS_PORT": link}) is None


def test_lanes_are_read_as_they_are_declared_in_code() -> None:
    text = (
        "priority reserved=16 weight=4 accept=pay,refund target=5s; "
        "normal weight=2 aging=1m pressure=100,1000 ;bulk payload_limit=1000000 timeout=1h;"
    )

    assert read_lanes({LANES: text}) == {
        "priority": Lane(16, 4, accept=["pay", "refund"], target="5s"),
        "normal": Lane(weight=2, aging="1m", pressure=(100, 1000)),
        "bulk": Lane(payload_limit=1_000_000, timeout="1h"),
    }


def test_routes_are_read_in_order() -> None:
    text = (
        "bulk name=reports task=report.*,export size_above=1000; "
        "priority sla=gold; bulk tenant=x pressure=over"
    )

    assert read_routes({ROUTES: text}) == [
        Route("bulk", name="reports", task=["report.*", "export"], size_above=1000),
        Route("priority", sla="gold"),
        Route("bulk", tenant=["x"], pressure="over"),
    ]


def test_classes_are_read_with_their_tenants() -> None:
    assert read_sla({SLA: "gold tenants=acme,globex; silver tenants=initech"}) == {
        "gold": ["acme", "globex"],
        "silver": ["initech"],
    }


def test_a_variable_that_is_empty_or_not_there_declares_nothing() -> None:
    assert read_lanes({}) == read_lanes({LANES: ""}) == read_lanes({LANES: " ; "}) == {}
    assert (read_routes({}), read_sla({})) == ([], {})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("priority fast", r"STREAMWORKER_LANES: 'fast' .* cannot be read"),
        ("priority speed=4", r"STREAMWORKER_LANES: 'speed=4' .*reserved, weight"),
        ("priority weight=4 weight=5", "each once"),
        ("priority weight=four", r"'weight=four' .* no whole number"),
        ("priority pressure=1,x", "no whole number"),
        ("priority weight=0", "weight must be"),
        ("priority; priority", "declares lane 'priority' twice"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        read_lanes({LANES: text})


def test_a_route_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="pressure"):
        read_routes({ROUTES: "bulk pressure=some"})
    with pytest.raises(InvalidArgument, match="lane name"):
        read_routes({ROUTES: "Bulk task=x"})


def test_an_app_takes_them_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LANES, "fast weight=3; bulk")
    monkeypatch.setenv(ROUTES, "bulk sla=trial")
    monkeypatch.setenv(SLA, "trial tenants=acme")

    app = App("shop")
    task = app.task(handler)

    assert dict(app.lanes) == {"fast": Lane(weight=3), "bulk": Lane()}
    assert task.options(tenant="acme").call().job.lane == "bulk"
    assert task.call().job.lane == "fast"


def test_what_code_says_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 12."""
    monkeypatch.setenv(LANES, "bulk")
    monkeypatch.setenv(ROUTES, "bulk")
    monkeypatch.setenv(SLA, "trial tenants=acme")

    app = App("shop", lanes={"normal": Lane()}, routes=[], sla={})

    assert list(app.lanes) == ["normal"]
    assert app.task(handler).options(tenant="acme").call().job.lane == "normal"
    assert app.router.sla == {}
