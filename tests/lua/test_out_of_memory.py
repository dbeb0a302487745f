"""Under OOM enqueue is refused whole, and everything that ends or moves a job still works (R31)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import scripts, settle_rows
from streamworker.store.connection import ReplyError, SyncLink
from tests.lua.driver import LEASE, RETENTION, Shard, job
from tests.servers import ServerAbsent, ServerFactory, selected_kinds

FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: " + "x" * 8_000)
RETRY = Retry(700, ErrorClass.TRANSIENT, "timeout", "Timeout: " + "x" * 8_000, "p1")
LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "", "-", Reason.RECOVERED)
KEYED: dict[str, Any] = {"key_id": "add::k", "fingerprint": "f"}


@pytest.fixture(params=selected_kinds())
def alone(request: pytest.FixtureRequest, own_valkey: ServerFactory) -> Iterator[Shard]:
    """A shard on a server of its own, whose memory the test may limit."""
    try:
        server = own_valkey(request.param)
    except ServerAbsent as absent:
        pytest.skip(f"{request.param}: {absent}")
    link = SyncLink(server.url)
    yield Shard(link, "oom")
    link.close()


@contextmanager
def out_of_memory(shard: Shard) -> Iterator[None]:
    """Allow the server less than it uses."""
    shard.redis("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(ReplyError, match="maxmemory"):
        shard.redis("SET", "anything", "x")
    yield
    shard.redis("CONFIG", "SET", "maxmemory", 0)


def drain(shard: Shard) -> None:
    """Run everything that is open to its end."""
    shard.elapse(LEASE)
    while True:
        shard.promote()
        plan = "normal 0 100 0\nnormal 1 0 q"
        claims = shard.claim("drain", plan=plan)
        for claim in claims:
            assert shard.settle(claim, Success()) == "OK"
        if not claims:
            break
    depths = {name: n for name, n in shard.stats().items() if name.split(":")[0] in ("queued", "in_flight")}
    assert depths == {}


@pytest.mark.parametrize("delay_ms", [0, 500])
def test_enqueue_is_refused_whole(alone: Shard, delay_ms: int) -> None:
    before = alone.look()

    with out_of_memory(alone), pytest.raises(ReplyError, match="maxmemory"):
        alone.enqueue(*(job(f"j{i}", delay_ms=delay_ms, key_id=f"k{i}", fingerprint="f") for i in range(3)))

    assert alone.look() == before
    assert alone.put("j0", delay_ms=delay_ms) != "DUPLICATE", "nothing of it was kept"


def test_a_request_that_is_known_is_answered_nevertheless(alone: Shard) -> None:
    alone.put("j", **KEYED)

    with out_of_memory(alone):
        assert alone.put("j", **KEYED) == "ACCEPTED"
        assert alone.put("other", **KEYED) == "DUPLICATE j queued"


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Success(b"x" * 1_000), "succeeded"),
        (RETRY, "retry_scheduled"),
        (FATAL, "failed_terminal"),
        (Release(Reason.SHUTDOWN), "queued"),
        (Release(Reason.SNOOZED, 700), "queued"),
    ],
)
def test_every_outcome_is_recorded(alone: Shard, outcome: Outcome, status: str) -> None:
    claim = alone.take("j", **KEYED)

    with out_of_memory(alone):
        assert alone.start(claim) == "OK"
        assert alone.settle(claim, outcome) == "OK"

    alone.check("j", status=status)
    drain(alone)


def test_an_exchange_settles_and_claims(alone: Shard) -> None:
    claim = alone.take("a")
    alone.put("b")

    with out_of_memory(alone):
        verdict, claims, replies = alone.exchange(settle_rows.outcome_row(claim, RETRY, 5), limit=5)

    assert (verdict, [one.job_id for one in claims], replies) == ("OK", ["b"], ["OK"])


def test_claims_go_on_also_in_a_lane_that_was_never_read(alone: Shard) -> None:
    alone.session()
    alone.put("j")

    with out_of_memory(alone):
        claims = alone.claim()

    assert [claim.job_id for claim in claims] == ["j"]


def test_time_goes_on(alone: Shard) -> None:
    alone.enqueue(job("due", delay_ms=100), job("late", deadline_ms=100))
    alone.take("held", lane="other", deadline_ms=100)
    alone.elapse(100)

    with out_of_memory(alone):
        assert alone.promote() == (1, 1, None)

    alone.check("due", place="r")
    alone.check("late", status="failed_terminal", dead="expired")
    alone.check("held", flag="expired")


def test_heartbeats_and_sessions_go_on(alone: Shard) -> None:
    claim = alone.take("j")
    alone.elapse(1000)

    with out_of_memory(alone):
        assert alone.heartbeat(claim) == ("OK", [], [])
        assert alone.session() == 2

    alone.check("j", lease_in=LEASE)


def test_recovery_goes_on_from_its_very_first_sweep(alone: Shard) -> None:
    alone.enqueue(job("dead"), job("delivered"))
    alone.claim_one()
    alone.deliver("w1")

    with out_of_memory(alone):
        alone.pass_hold()
        alone.elapse(LEASE)
        (candidate,) = alone.found_dead()
        assert alone.recovery(candidate, LOST) == "OK"

    alone.check("dead", status="retry_scheduled", place="q", strikes=1)
    alone.check("delivered", status="queued", place="r")
    drain(alone)


def test_a_keeper_can_be_elected(alone: Shard) -> None:
    """Else nothing is promoted and nobody recovered, once the one that was elected is gone."""
    with out_of_memory(alone):
        assert alone.elect("w1")
        assert not alone.elect("w2")
        assert alone.redis("PTTL", alone.keys.elect("keeper")) > 0


def test_an_outcome_can_be_waited_for(alone: Shard) -> None:
    claim = alone.take("j")

    with out_of_memory(alone):
        assert alone.watch("j", wait=1) == "WAIT"
        assert alone.settle(claim, Success(b"1")) == "OK"
        assert alone.watch("j", wait=1) == [b"succeeded", b"1", b"", b""]

    assert alone.redis("LRANGE", alone.keys.done("j"), 0, -1) == [b"succeeded"]


def test_a_worker_with_new_tasks_can_say_what_they_declare(alone: Shard) -> None:
    with out_of_memory(alone):
        assert alone.send(scripts.publish(rows=["task:add", "{}"])) == [1]


def test_repair_goes_on(alone: Shard) -> None:
    alone.put("j")
    alone.delete_entry("j")

    with out_of_memory(alone):
        assert alone.repair("j") == (1, [])

    alone.tampered.clear()
    alone.check("j", dead="entry_deleted")


def test_a_tick_of_a_cron_is_refused_whole_and_a_skipped_one_is_counted(alone: Shard) -> None:
    def tick(overlap: str) -> Any:
        call = scripts.cron(
            clock=alone.clock,
            worker="w1",
            retention_ms=RETENTION,
            name="add",
            tick=alone.now,
            ttl_ms=60_000,
            overlap=overlap,
            schedule="UTC * * * * *",
            rows=job(f"j{alone.now}").row(),
        )
        return alone.send(call)[0]

    before = alone.look()
    with out_of_memory(alone):
        with pytest.raises(ReplyError, match="maxmemory"):
            tick("skip")
        assert alone.look() == before
    assert tick("skip") == b"OK"
    alone.elapse(1000)
    with out_of_memory(alone):
        assert tick("skip") == b"SKIPPED"
        before = alone.look()
        alone.elapse(1000)
        with pytest.raises(ReplyError, match="maxmemory"):
            tick("replace")
    assert alone.look().records() == before.records(), "the earlier job goes on"
    assert alone.stats()["cron_skipped:add"] == 1


def test_operators_can_act(alone: Shard) -> None:
    alone.settle(alone.take("dead", **KEYED), FATAL)
    alone.settle(alone.take("useless"), FATAL)
    alone.take("held")
    alone.put("queued")

    with out_of_memory(alone):
        assert alone.cancel("queued") == "OK"
        assert alone.cancel("held") == "FLAGGED"
        assert alone.replay(alone.letter("dead")) == ["OK"]
        assert alone.discard(alone.letter("useless")) == ["OK"]
        assert alone.forget("nobody") == 2

    alone.check("dead", status="queued", epoch=1, key="open")
