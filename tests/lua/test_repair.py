"""repair: a job that no stream, schedule or holder has any more is found by its record (D3, D8)."""

from __future__ import annotations

from streamworker.core.outcome import Retry, Success
from streamworker.core.states import ErrorClass, Reason
from tests.lua.driver import LEASE, RETENTION, Shard, job

AGAIN = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "the worker died", "-", Reason.RECOVERED)


def test_a_waiting_job_whose_entry_is_gone_ends_as_a_dead_letter(shard: Shard) -> None:
    shard.put("j", key_id="add::k", fingerprint="f")
    shard.delete_entry("j")

    assert shard.repair("j") == (1, [])

    shard.check("j", status="failed_terminal", dead="entry_deleted", key=None)
    shard.tampered.clear()
    assert shard.repair("j") == (0, [])


def test_a_parked_job_that_no_schedule_holds_is_ready_when_it_would_have_been(shard: Shard) -> None:
    """B55, B80: somebody deleted the schedule: nobody is lost, and nobody is early."""
    shard.put("j", delay_ms=10_000)
    shard.tampered.add("j")
    shard.redis("ZREM", shard.keys.schedule, "j")

    assert shard.repair("j") == (1, [])

    shard.tampered.clear()
    shard.check("j", status="queued", place="schedule", due_in=10_000)
    shard.redis("ZREM", shard.keys.schedule, "j")
    shard.tampered.add("j")
    shard.elapse(10_000)
    assert shard.repair("j") == (1, [])
    shard.tampered.clear()
    shard.check("j", status="queued", place="r")
    assert shard.claim_one().envelope == b"env of j"


def test_a_claim_that_no_stream_holds_is_named_when_its_lease_is_over(shard: Shard) -> None:
    shard.pass_hold()
    shard.take("j")
    shard.delete_entry("j")
    shard.elapse(LEASE - 1)
    assert shard.repair("j") == (0, [])

    shard.elapse(1)
    mended, (candidate,) = shard.repair("j")

    assert (mended, candidate.job_id) == (0, "j")
    assert shard.recovery(candidate, AGAIN) == "OK"
    shard.tampered.clear()
    shard.check("j", status="failed_terminal", dead="entry_deleted", strikes=1)


def test_repair_leaves_claims_alone_while_recovery_holds(shard: Shard) -> None:
    shard.take("j")
    shard.delete_entry("j")
    shard.elapse(2 * LEASE, swept=False)
    shard.recover()

    assert shard.repair("j") == (0, [])


def test_repair_leaves_alone_what_is_in_its_place(shard: Shard) -> None:
    shard.pass_hold()
    held = shard.take("held")
    shard.settle(shard.take("done"), Success())
    shard.enqueue(job("queued"), job("parked", delay_ms=1000))
    shard.elapse(LEASE)
    before = shard.look()

    assert shard.repair("held", "done", "queued", "parked", "unknown") == (0, [])

    assert shard.look().without_times() == before.without_times()
    assert shard.settle(held, Success()) == "OK"


def test_a_finished_job_that_would_stay_for_ever_gets_its_ttl(shard: Shard) -> None:
    """A commit that was cut off between its last writes leaves record or body without one."""
    shard.settle(shard.take("j"), Success(b"x" * 100))
    shard.redis("PERSIST", shard.keys.body("j"))
    shard.tampered.add("j")

    assert shard.repair("j") == (0, [])

    shard.tampered.clear()
    assert 0 < shard.look().ttls["body:j"] <= RETENTION
    shard.check("j", status="succeeded")


def test_a_body_that_no_record_needs_gets_its_end(shard: Shard) -> None:
    """Not from outside: after a replay in between, its envelope would go with the TTL."""
    shard.take("j")
    shard.put("parked", delay_ms=60_000)
    shard.watchful = False  # a body without a record is what no script leaves
    shard.redis("HSET", shard.keys.body("gone"), "env", "x")

    assert shard.repair("gone", "parked", "j", "never") == (0, [])

    ttls = shard.look().ttls
    assert 0 < ttls["body:gone"] <= RETENTION
    assert ttls["body:parked"] == ttls["job:parked"] == ttls["job:j"] == -1
    assert "body:never" not in ttls
    shard.redis("DEL", shard.keys.body("gone"))
