"""What a task declares of gates: checked, published, and named for each of its jobs."""

from __future__ import annotations

from typing import Any

import pytest

from streamworker import App, Concurrency, ConfigurationError, Context, Dependency, InvalidArgument, Rate
from streamworker.core.gates import Gate, GateKind, names
from streamworker.request import Options, declared_job
from streamworker.store.manifest import Declaration
from streamworker.store.routing import NO_RULES


async def pack(ctx: Context, shipment_id: int, note: str = "") -> None: ...


async def tidy(ctx: Context, day: str = "") -> None: ...


@pytest.fixture
def app() -> App:
    return App("shop", dependencies={"carrier": Dependency(rate="10/s")})


PROTECTED: dict[str, Any] = {
    "entity": "shipment:{shipment_id}",
    "uses": ["carrier"],
    "limits": [Concurrency("tenant", 3), Rate("lane", "5/s")],
    "key": "{shipment_id}",
}


def test_each_job_names_its_gates(app: App) -> None:
    task = app.task(**PROTECTED)(pack)

    job = task.options(tenant="acme").call(7).job

    assert names(job.gates) == [
        "pause:dependency:carrier",
        "breaker:dependency:carrier",
        "rate:dependency:carrier",
        "rate:lane:normal",
        "entity:shipment:7",
        "concurrency:tenant:acme",
    ]
    assert job.key_id == "pack:shipment%3A7:7", "an idempotency key holds within its entity"


def test_a_task_without_gates_says_nothing_of_them(app: App) -> None:
    task = app.task(pack)

    assert task.gates is None
    assert task.call(7).job.gates == ""
    assert b"gates" not in task.declaration().encode()


def test_producers_without_the_code_name_the_same_gates(app: App) -> None:
    """D17: they cannot bypass protection."""
    task = app.task(**PROTECTED)(pack)
    declared = Declaration.decode("pack", b"12 " + task.declaration().encode())

    job, _ = declared_job("pack", {"shipment_id": 7}, Options.of(tenant="acme"), declared, NO_RULES)

    by_the_code = task.options(tenant="acme").call(7).job
    assert job.gates.split(" ")[1:] == by_the_code.gates.split(" ")[1:]
    assert job.gates.startswith("12 "), "the number tells a newer worker that these may be out of date"
    assert by_the_code.gates.startswith("0 ")
    assert job.key_id == by_the_code.key_id


def test_an_argument_that_a_gate_names_has_to_be_given(app: App) -> None:
    task = app.task(limits=[Rate("note:{note}", "1/s")])(pack)

    with pytest.raises(InvalidArgument, match="note"):
        task.call(7)


def test_the_declared_figures_are_those_of_all_tasks(app: App) -> None:
    app.task(limits=[Rate("task", "5/s")])(pack)
    app.task(uses=["carrier"], limits=[Concurrency("tenant", 2)])(tidy)

    assert app.limits() == {
        "rate:task:pack": "5,1000,5",
        "breaker:dependency:carrier": "50,20,10000,10000,3,60000",
        "rate:dependency:carrier": "10,1000,10",
        "concurrency:tenant@tidy": "2",
    }


def test_a_strict_order_is_kept_in_the_declaration(app: App) -> None:
    task = app.task(entity="s:{shipment_id}", entity_order="strict")(pack)

    assert task.policy.gates == (Gate(GateKind.ENTITY, "s:{shipment_id}", "strict"),)
    assert Declaration.decode("pack", b"1 " + task.declaration().encode()).gates == task.policy.gates
    with pytest.raises(ConfigurationError, match="entity_order"):
        app.task(name="other", entity="s:{shipment_id}", entity_order="fifo")(pack)  # type: ignore[call-overload]


def test_a_dependency_without_a_key_is_warned_of(app: App) -> None:
    """D11."""
    app.task(uses=["carrier"])(pack)
    app.task(name="keyed", uses=["carrier"], key="{shipment_id}")(pack)

    assert app.warnings() == [
        "task pack uses carrier and has no key=: two jobs for the same thing would both call it"
    ]


def test_a_cron_has_no_arguments_for_its_gates(app: App) -> None:
    with pytest.raises(ConfigurationError, match="nobody gives day"):
        app.cron("* * * * *", entity="day:{day}")(tidy)
    assert app.cron("* * * * *", name="fine", limits=[Rate("task", "1/s")])(tidy).gates is not None


@pytest.mark.parametrize("dependencies", [{"Not A Name": Dependency()}, {"carrier": 20}])
def test_dependencies_that_cannot_work_are_refused(dependencies: Any) -> None:
    with pytest.raises(ConfigurationError, match="dependency"):
        App("shop", dependencies=dependencies)
