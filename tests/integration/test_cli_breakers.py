"""`streamworker breakers`: what each is, and an operator's word."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamworker.core.breaker import Breaker
from streamworker.core.gates import breaker_of
from streamworker.store import scripts
from tests.integration.cli_desk import Desk
from tests.integration.test_cli_gates import audit, enqueue
from tests.servers import BenchServer

pytestmark = pytest.mark.usefixtures("no_leaks")
GATE = breaker_of("carrier")
FIGURES = Breaker().figures


@pytest.fixture
def desk(valkey: BenchServer, namespace: str) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as desk:
        yield desk


def declare(desk: Desk) -> None:
    desk.run(scripts.declare(clock="", lanes="normal", rows=[GATE, FIGURES]))


def test_nothing_is_shown_where_nothing_is_declared(desk: Desk) -> None:
    assert desk.json("breakers") == []
    assert "declared a breaker" in desk.call("breakers").stderr


def test_a_breaker_that_is_closed_says_so(desk: Desk) -> None:
    declare(desk)

    (row,) = desk.json("breakers")

    assert (row["dependency"], row["state"], row["ok"], row["failed"]) == ("carrier", "closed", 0, 0)
    assert row["declared"] == FIGURES
    assert "50 % of 20 calls or more in 10s" in desk.call("breakers").stdout


def test_an_operator_opens_and_closes_it_and_lets_go(desk: Desk) -> None:
    declare(desk)
    enqueue(desk, "a", "b", gates=f"0 {GATE}|{FIGURES}")

    opened = desk.json("breakers", "open", "carrier", "--for", "10m", "--reason", "they asked us to")
    assert opened == {"dependency": "carrier", "forced": "open", "changed": True}
    assert audit(desk) == f"- 0 open {GATE} 600000 0 they asked us to"
    assert desk.claim(9) == []
    (row,) = desk.json("breakers")
    assert (row["state"], row["waiting"], row["reason"]) == ("open", 2, "they asked us to")
    assert row["by"]
    assert row["until"] is not None
    (gate,) = desk.json("gates")
    assert (gate["gate"], gate["state"], gate["waiting"]) == (GATE, "open", {"normal": 2})
    assert desk.json("gates", GATE)["breaker"]["state"] == "open"
    assert "open since" in desk.call("gates", GATE).stdout

    desk.call("breakers", "close", "carrier", "--at-once")
    assert len(desk.claim(9)) == 2
    assert desk.json("breakers")[0]["state"] == "closed"
    assert desk.json("breakers")[0]["by"]

    assert desk.json("breakers", "auto", "carrier")["changed"] is True
    assert desk.json("breakers")[0]["by"] is None
    assert "nobody has forced" in desk.refused("breakers", "auto", "carrier")


def test_one_that_is_forced_open_is_tried_before_it_closes(desk: Desk) -> None:
    declare(desk)
    desk.call("breakers", "open", "carrier")
    desk.call("breakers", "auto", "carrier")

    assert desk.json("breakers")[0]["state"] == "half_open"


def test_a_dependency_that_nobody_declares_is_warned_of(desk: Desk) -> None:
    declare(desk)

    for verb in ("open", "close"):
        assert desk.call("breakers", verb, "carrier").stderr.count("\n") == 1
        assert (
            f"warning: nothing in {desk.namespace} declares courier"
            in desk.call("breakers", verb, "courier").stderr
        )


def test_what_is_no_dependency_is_refused(desk: Desk) -> None:
    assert "dependency name" in desk.refused("breakers", "open", "Not A Name", code=2)


def test_a_breaker_is_no_limit(desk: Desk) -> None:
    declare(desk)

    assert desk.json("limits") == []
