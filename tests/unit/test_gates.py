"""What a task declares comes to an ordered list of gates for each of its jobs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamworker.core.breaker import Breaker
from streamworker.core.errors import ConfigurationError, InvalidArgument
from streamworker.core.gates import (
    MAX_GATE_BYTES,
    MAX_LIMIT_BYTES,
    Gate,
    GateKind,
    Gates,
    declare,
    entity_of,
    names,
    number_of,
    regate,
)
from streamworker.core.limits import Concurrency, Dependency, Limit, Rate

PARAMETERS = ("shipment_id", "user_id", "carrier")
ARGS = {"shipment_id": 7, "user_id": "u1", "carrier": "dhl"}
DEPENDENCIES = {"carrier": Dependency(concurrency=20, rate="100/s"), "mail": Dependency(breaker=None)}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


def gates(task: str = "pack", parameters: tuple[str, ...] = PARAMETERS, **options: Any) -> Gates:
    return Gates(task, parameters, declare(task, dependencies=DEPENDENCIES, **options))


def words(found: Gates, args: dict[str, Any] = ARGS, tenant: str | None = "acme") -> list[str]:
    return found.words(args, tenant=tenant, lane="normal")


def test_gates_are_passed_by_kind_and_then_by_name() -> None:
    """D12 and DESIGN 7: the same order for all jobs, so that two of them never wait for each other."""
    found = gates(
        entity="shipment:{shipment_id}",
        uses=["mail", "carrier"],
        limits=[
            Concurrency("user:{user_id}", 2),
            Rate("tenant", "50/s"),
            Concurrency("lane", 9),
            Rate("task", "10/s", burst=1),
        ],
    )

    assert words(found) == [
        "pause:dependency:carrier",
        "pause:dependency:mail",
        f"breaker:dependency:carrier|{Breaker().figures}",
        "rate:dependency:carrier|100,1000,100",
        "rate:task:pack|10,1000,1",
        "rate:tenant:acme|50,1000,50|rate:tenant@pack",
        "entity:shipment:7",
        "concurrency:dependency:carrier|20",
        "concurrency:lane:normal|9|concurrency:lane@pack",
        "concurrency:user:u1|2|concurrency:user:{user_id}@pack",
    ]


def test_the_order_does_not_hang_on_the_order_of_declaration() -> None:
    limits: list[Limit] = [Concurrency("a:{user_id}", 1), Concurrency("b:{shipment_id}", 1)]

    one, other = gates(limits=limits), gates(limits=limits[::-1])

    assert words(one) == words(other)


def test_a_line_begins_with_the_number_of_the_manifest() -> None:
    found = gates(limits=[Rate("tenant", "50/s")], entity="shipment:{shipment_id}")

    line = found.line(ARGS, tenant="acme", lane="normal", number=17)

    assert line == "17 rate:tenant:acme|50,1000,50|rate:tenant@pack entity:shipment:7"
    assert names(line) == ["rate:tenant:acme", "entity:shipment:7"]
    assert number_of(line) == 17


def test_a_task_without_gates_costs_nothing() -> None:
    found = gates()

    assert not found
    assert found.line(ARGS, tenant="acme", lane="normal", number=17) == ""
    assert (names(""), number_of(""), found.figures(), found.entity(ARGS)) == ([], 0, {}, "")


def test_a_job_without_a_tenant_passes_no_gate_of_tenants() -> None:
    found = gates(limits=[Rate("tenant", "50/s")])

    assert words(found, tenant=None) == []
    assert found.line(ARGS, tenant=None, lane="normal", number=3) == ""


def test_two_tasks_that_name_one_gate_share_it() -> None:
    """An entity lock and a limit over a template are about the thing, not about the task."""
    one = gates("pack", entity="shipment:{shipment_id}", limits=[Concurrency("user:{user_id}", 2)])
    other = gates("send", entity="shipment:{shipment_id}", limits=[Concurrency("user:{user_id}", 2)])

    lines = [each.line(ARGS, tenant=None, lane="normal", number=0) for each in (one, other)]

    assert names(lines[0]) == names(lines[1])


def test_a_lock_and_a_limit_over_the_same_thing_are_two_gates() -> None:
    found = gates(entity="user:{user_id}", limits=[Concurrency("user:{user_id}", 2)])

    assert len(set(words(found))) == 2
    assert [word.partition("|")[0] for word in words(found)] == ["entity:user:u1", "concurrency:user:u1"]


def test_two_templates_that_come_to_one_gate_are_passed_once() -> None:
    found = gates(limits=[Concurrency("x:{user_id}", 2), Concurrency("x:{carrier}", 3)])

    assert len(words(found, {**ARGS, "carrier": "u1"})) == 1
    assert len(words(found)) == 2


def test_a_template_that_begins_with_a_field_is_told_apart_by_its_name() -> None:
    """`{user_id}` and `{shipment_id}` are both 7, and no lock of one must hold up the other."""
    args = {**ARGS, "user_id": 7}

    assert words(gates(entity="{user_id}"), args) == ["entity:user_id:7"]
    assert words(gates(entity="{shipment_id}"), args) == ["entity:shipment_id:7"]


def test_a_strict_entity_says_so() -> None:
    """D16."""
    assert words(gates(entity="s:{shipment_id}", strict=True)) == ["entity:s:7|strict"]
    with pytest.raises(ConfigurationError, match="needs an entity"):
        gates(strict=True)


def test_the_entity_is_known_by_itself() -> None:
    """It is part of the identity of the idempotency key (DESIGN 5)."""
    assert gates(entity="shipment:{shipment_id}", limits=[Rate("task", "1/s")]).entity(ARGS) == "shipment:7"


def test_the_entity_can_be_read_from_a_line() -> None:
    line = gates(entity="shipment:{shipment_id}", uses=["mail"]).line(
        ARGS, tenant=None, lane="normal", number=3
    )

    assert entity_of(line) == "shipment:7"
    assert (
        entity_of(gates(entity="s:{shipment_id}", strict=True).line(ARGS, tenant=None, lane="x", number=0))
        == "s:7"
    )
    assert entity_of("3 concurrency:entity:7|1") is None
    assert entity_of("") is None


@given(TEXT, TEXT)
def test_names_are_short_plain_and_different(first: str, second: str) -> None:
    """They are keys and words: bounded, and without white space or the separator."""
    assume(first != second)
    found = gates(
        parameters=("user_id",),
        entity="{user_id}",
        limits=[Rate("tenant", "1/s"), Concurrency("u:{user_id}", 1)],
    )

    one, other = (words(found, {"user_id": each}, tenant=each) for each in (first, second))

    for mine, theirs in zip(one, other, strict=True):
        name, *rest = mine.split("|")
        assert name != theirs.partition("|")[0]
        assert len(name.encode()) <= len("concurrency:") + MAX_GATE_BYTES <= 64
        assert not any(char.isspace() or not char.isprintable() for char in name if ord(char) < 160)
        assert len(rest) <= 2
        assert len(mine.split()) == 1


def test_a_digest_is_never_a_plain_name() -> None:
    """A value that looks like a digest becomes one, so that it imitates none."""
    found = gates(parameters=("user_id",), limits=[Concurrency("#{user_id}", 1)])

    assert words(found, {"user_id": "x" * 42})[0].partition("|")[0] != "concurrency:#" + "x" * 42


@given(st.text(min_size=1, max_size=80).map(lambda text: text.replace("{", "").replace("}", "") + "{a}"))
def test_the_name_of_a_limit_is_bounded(template: str) -> None:
    assume(template.partition(":")[0] not in ("task", "tenant", "lane", "dependency"))
    found = Gates("x" * 64, ("a",), [Gate(GateKind.RATE, template, "1,1000,1")])

    (limit,) = found.figures()

    assert len(limit.encode()) <= MAX_LIMIT_BYTES
    assert len(limit.split()) == 1


def test_the_declared_figures_are_kept_by_limit() -> None:
    found = gates(
        uses=["carrier"], entity="s:{shipment_id}", limits=[Rate("tenant", "50/s"), Concurrency("task", 5)]
    )

    assert found.figures() == {
        "rate:dependency:carrier": "100,1000,100",
        "concurrency:dependency:carrier": "20",
        "rate:tenant@pack": "50,1000,50",
        "concurrency:task:pack": "5",
    }


@pytest.mark.parametrize("entity", ["everything", "shipment", "task", "tenant", "lane"])
def test_a_lock_for_all_jobs_is_refused(entity: str) -> None:
    """DESIGN 9: whoever means it says Concurrency("task", 1)."""
    with pytest.raises(ConfigurationError, match=r'Concurrency\("task", 1\)'):
        gates(entity=entity)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"entity": "s:{nobody}"}, "nobody"),
        ({"limits": [Rate("tenants", "1/s")]}, "a scope is"),
        ({"limits": [Rate("task:{user_id}", "1/s")]}, "another scope"),
        ({"limits": [Rate("dependency-x:{user_id.name}", "1/s")]}, "plain name"),
        ({"limits": [Rate("task", "1/s"), Rate("task", "2/s")]}, "two Rate limits"),
        ({"limits": ["50/s"]}, "takes Rate"),
        ({"limits": Rate("task", "1/s")}, r"is a list, such as limits=\[Rate\("),
        ({"uses": ["nobody"]}, "no dependency of the app; it has: carrier, mail"),
        ({"uses": "carrier"}, "list of names"),
        ({"limits": [Rate(f"x{n}:{{user_id}}", "1/s") for n in range(17)]}, "16 are the most"),
    ],
)
def test_gates_that_cannot_work_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        gates(**options)


def test_an_argument_that_a_template_needs_is_named() -> None:
    found = gates(entity="shipment:{shipment_id}")

    with pytest.raises(InvalidArgument, match=r"shipment_id.*missing"):
        words(found, {"user_id": 1})
    with pytest.raises(InvalidArgument, match="float; it takes str or int"):
        words(found, {"shipment_id": 1.5})


def test_a_dependency_that_is_named_twice_counts_once() -> None:
    found = gates(uses=["mail", "mail"])

    assert words(found) == ["pause:dependency:mail"]
    assert len(found.declared) == 1


# --- another declaration than the job's (D17) -------------------------------------------------------------


def judged(found: Gates | None, line: str, number: int, args: dict[str, Any] = ARGS) -> str | None:
    return regate(found, line, args, tenant="acme", lane="normal", number=number)


def test_a_job_whose_gates_are_those_of_today_is_left_alone() -> None:
    found = gates(limits=[Rate("tenant", "50/s")])
    line = found.line(ARGS, tenant="acme", lane="normal", number=0)

    assert judged(found, line, 9) is None
    assert judged(gates(limits=[Rate("tenant", "7/s")]), line, 9) is None, "figures do not count"
    assert judged(None, "", 9) is None


def test_a_newer_declaration_gates_the_job_anew() -> None:
    found = gates(limits=[Rate("tenant", "50/s")])

    assert judged(found, "", 9) == "9 rate:tenant:acme|50,1000,50|rate:tenant@pack"
    assert judged(found, "8 entity:s:7", 9) == judged(found, "", 9)
    assert judged(None, "8 entity:s:7", 9) == ""


@pytest.mark.parametrize("number", [0, 7, 8])
def test_an_older_declaration_does_not(number: int) -> None:
    """Two versions of a rolling deploy would hand the job back and forth until it dies."""
    assert judged(gates(limits=[Rate("tenant", "50/s")]), "8 entity:s:7", number) is None
    assert judged(None, "8 entity:s:7", number) is None


def test_a_job_that_lacks_what_a_new_template_names_cannot_be_gated() -> None:
    with pytest.raises(InvalidArgument, match="user_id"):
        judged(gates(entity="user:{user_id}"), "", 9, {"shipment_id": 7})
