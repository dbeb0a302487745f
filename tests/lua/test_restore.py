"""restore and hold: what Redis lost comes back as the durable record has it (D19)."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Fail, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import scripts
from tests.lua.driver import RETENTION, START, Shard, job, plan_of

MORE = "\nky=add::k\nkf=f\nkw=60000\ntn=acme"


def head_of(
    status: str, *, attempt: int = 1, starts: int = 2, strikes: int = 0, due: str = "-", error: str = "- -"
) -> str:
    """The row's head of a job of version 5 in its first epoch but one."""
    return f"{status} {attempt} {starts} {strikes} 5 1 normal add {START - 1000} {due} {error}"


def restore(shard: Shard, job_id: str, head: str, more: str = "", text: str = "") -> str:
    """One row."""
    rows = [job_id, head, f"env of {job_id}", more, text]
    call = scripts.restore(clock=shard.clock, actor="mirror", retention_ms=RETENTION, rows=rows)
    (reply,) = shard.send(call)
    return str(reply.decode())


@pytest.mark.parametrize(
    ("status", "attempt", "becomes"),
    [("queued", 0, "queued"), ("claimed", 1, "queued"), ("processing", 2, "queued"),
     ("retry_scheduled", 2, "retry_scheduled")],
)  # fmt: skip
def test_a_lost_job_waits_again_uncharged_with_its_counters(
    shard: Shard, status: str, attempt: int, becomes: str
) -> None:
    assert restore(shard, "j", head_of(status, attempt=attempt), MORE) == "RESTORED"

    charged = attempt - 1 if status in ("claimed", "processing") else attempt
    shard.check("j", status=becomes, attempt=charged, starts=2, epoch=1, place="r", key="open")
    record = shard.record("j")
    assert (record.version, record.number("at"), record.text("tn")) == (6, START - 1000, "acme")
    (line,) = shard.history("j")
    assert (line.reason, line.source, line.target, line.actor) == ("restored", status, becomes, "mirror")
    claim = shard.claim_one()
    assert (claim.attempt, claim.starts, claim.epoch) == (charged + 1, 3, 1)
    assert claim.envelope == b"env of j"
    assert shard.settle(claim, Success()) == "OK"


def test_a_retry_keeps_its_due_time(shard: Shard) -> None:
    restore(shard, "j", head_of("retry_scheduled", due=str(shard.now + 500)))

    shard.check("j", status="retry_scheduled", place="schedule", due_in=500)
    assert shard.claim() == []
    shard.elapse(500)
    assert shard.promote()[0] == 1
    assert shard.claim_one().job_id == "j"


@pytest.mark.parametrize(("said", "error"), [("transient timeout", "transient timeout"), ("- -", None)])
def test_a_retry_keeps_its_error_code(shard: Shard, said: str, error: str | None) -> None:
    restore(shard, "j", head_of("retry_scheduled", due=str(shard.now + 500), error=said))

    shard.check("j", status="retry_scheduled", error=error)
    shard.elapse(500)
    shard.promote()
    assert shard.settle(shard.claim_one(), Success()) == "OK"


def test_a_retry_keeps_its_error_text(shard: Shard) -> None:
    due = str(shard.now + 500)
    restore(shard, "j", head_of("retry_scheduled", due=due, error="transient timeout"), text="Timeout: 3 s")

    assert shard.redis("HGET", shard.keys.body("j"), "error") == b"Timeout: 3 s"
    shard.elapse(500)
    shard.promote()
    assert shard.settle(shard.claim_one(), Success()) == "OK"
    assert shard.redis("PTTL", shard.keys.body("j")) > 0


def test_a_job_that_was_to_be_cancelled_begins_no_more(shard: Shard) -> None:
    """Else what runs when Redis loses its data would run anew although somebody was told that it ends."""
    assert restore(shard, "j", head_of("processing"), f"{MORE}\ncx=cancelled") == "CANCELLED"

    shard.check("j", status="failed_terminal", error="persistent cancelled", dead=None)
    assert shard.claim() == []
    assert shard.redis("PTTL", shard.keys.job("j")) > 0
    assert shard.redis("EXISTS", shard.keys.key("add::k")) == 0
    (line,) = shard.history("j")
    assert (line.reason, line.source, line.target) == ("cancelled", "processing", "failed_terminal")


def test_one_that_may_have_had_its_effect_is_looked_at_before_it_ends(shard: Shard) -> None:
    shard.redis("HSET", shard.keys.policies, "effects:add", "1")

    assert restore(shard, "j", head_of("processing"), f"{MORE}\ncx=cancelled") == "RESTORED"

    claim = shard.claim_one()
    assert claim.cause == "cancelled persistent cancelled"
    assert shard.settle(claim, Success(b"1", Reason.EFFECT_COMMITTED)) == "OK"
    shard.check("j", status="succeeded")


def test_one_that_was_to_end_is_only_looked_at(shard: Shard) -> None:
    more = f"{MORE}\nbu=error persistent broken"
    assert restore(shard, "j", head_of("retry_scheduled", error="persistent broken"), more) == "RESTORED"

    claim = shard.claim_one()
    assert (claim.cause, claim.attempt) == ("error persistent broken", 1)
    assert shard.settle(claim, Fail(ErrorClass.PERSISTENT, "broken", "", Reason.BURIED)) == "OK"
    shard.check("j", status="failed_terminal", error="persistent broken")


@pytest.mark.parametrize("moved_since", [False, True])
def test_one_that_may_have_started_since_is_looked_at_before_it_ends(shard: Shard, moved_since: bool) -> None:
    """It had no start that the durable record knew of, and was cancelled with its effect committed."""
    shard.redis("HSET", shard.keys.policies, "effects:add", "1")
    due = str(shard.now + 500) if moved_since else "-"
    assert restore(shard, "j", head_of("queued", attempt=0, starts=0, due=due), MORE) == "RESTORED"
    if moved_since:
        shard.hasten("j")

    assert shard.cancel("j") == "FLAGGED"

    claim = shard.claim_one()
    assert (claim.cause, claim.starts) == ("cancelled persistent cancelled", 0)
    assert shard.settle(claim, Fail(ErrorClass.UNKNOWN, "buried", "", Reason.BURIED)) == "OK"
    shard.check("j", status="failed_terminal", error="persistent cancelled")


def test_one_that_went_back_to_before_its_cancel_is_told_again(shard: Shard) -> None:
    claim = shard.take("held")
    shard.put("waits")
    head = head_of("processing").replace(" 5 1 ", " 1 0 ")

    assert restore(shard, "held", head, "\ncx=cancelled") == "FLAGGED"
    assert restore(shard, "held", head, "\ncx=cancelled") == "THERE"
    assert restore(shard, "waits", head_of("processing"), "\ncx=cancelled") == "CANCELLED"

    assert shard.heartbeat(claim)[2] == ["held", "cancelled"]
    shard.check("waits", status="failed_terminal", error="persistent cancelled", place=None)
    record = shard.record("waits")
    assert (record.epoch, record.version) == (1, 6)
    assert shard.claim() == []


def test_a_job_with_strikes_comes_back_into_quarantine(shard: Shard) -> None:
    restore(shard, "j", head_of("processing", strikes=1))

    shard.check("j", place="q", strikes=1)
    assert shard.claim() == []
    assert shard.claim_one(plan=plan_of(("normal", 1, 0, "q"))).job_id == "j"


def test_a_deadline_holds_again(shard: Shard) -> None:
    restore(shard, "j", head_of("queued", attempt=0), f"\ndl={shard.now + 100}")

    shard.elapse(100)

    assert shard.promote()[1] == 1
    shard.check("j", status="failed_terminal", error="persistent expired")


def test_a_job_that_is_there_is_left_as_it_is(shard: Shard) -> None:
    restore(shard, "j", head_of("queued"))
    shard.claim_one()
    before = shard.look()

    assert restore(shard, "j", head_of("processing")) == "THERE"
    assert restore(shard, "j", head_of("processing").replace(" 5 1 ", " 9 0 ")) == "THERE"

    assert shard.look().records() == before.records()


@pytest.mark.parametrize("held", [False, True])
def test_an_open_job_that_went_back_goes_on_behind_what_is_known(shard: Shard, held: bool) -> None:
    shard.put("j")
    claim, status = (shard.claim_one(), "claimed") if held else (None, "queued")

    assert restore(shard, "j", head_of("retry_scheduled")) == "CAUGHT_UP"
    assert restore(shard, "j", head_of("retry_scheduled")) == "THERE"

    record, line = shard.record("j"), shard.history("j")[-1]
    assert (record.status, record.epoch, record.version) == (status, 1, 6)
    assert (line.source, line.target, line.reason) == (status, status, "restored")
    assert shard.settle(claim or shard.claim_one(), Success()) == "OK"


def test_a_job_that_is_as_far_as_is_known_goes_on_as_it_is(shard: Shard) -> None:
    shard.put("j")

    assert restore(shard, "j", head_of("queued").replace(" 5 1 ", " 1 0 ")) == "THERE"


@pytest.mark.parametrize("version", [1, 4, 5])
def test_what_a_job_that_went_back_came_to_is_told_again(shard: Shard, version: int) -> None:
    shard.redis("HSET", shard.keys.policies, "mirror", "m1")
    shard.settle(shard.take("good"), Success(b"7"))
    shard.settle(shard.take("long"), Success(b"x" * 99))
    shard.settle(shard.take("bad"), Fail(ErrorClass.PERSISTENT, "broken", "so"))
    head = head_of("processing").replace(" 5 1 ", f" {version} 0 ")

    replies = [restore(shard, name, head) for name in ("good", "long", "bad")]

    assert replies == ["THERE" if version < 4 else "CAUGHT_UP"] * 3
    if version < 4:
        return
    entries = list(shard.look().streams["events"].values())[-3:]
    assert [entry.get(b"r1", entry.get(b"x1")) for entry in entries] == [b"7", b"x" * 99, b"so"]
    assert b"class=persistent code=broken" in entries[2][b"e"]
    shard.check("good", status="succeeded")
    assert shard.record("good").version == version + 1
    assert shard.redis("PTTL", shard.keys.job("good")) > 0


def test_a_key_that_names_another_job_by_now_ends_the_old_one(shard: Shard) -> None:
    shard.put("new", key_id="add::k", fingerprint="f")

    assert restore(shard, "old", head_of("queued"), MORE) == "SUPERSEDED new"

    shard.check("old", status="failed_terminal", error="persistent superseded", dead=None)
    shard.check("new", status="queued", key="open")
    assert shard.redis("PTTL", shard.keys.job("old")) > 0


def test_two_old_jobs_of_one_key_do_not_both_come_back(shard: Shard) -> None:
    rows = [word for each in ("a", "b") for word in (each, head_of("queued"), f"env of {each}", MORE, "")]
    call = scripts.restore(clock=shard.clock, actor="mirror", retention_ms=RETENTION, rows=rows)

    assert shard.send(call) == [b"RESTORED", b"SUPERSEDED a"]


def test_a_waiting_job_that_is_over_in_postgres_ends_without_a_move(shard: Shard) -> None:
    shard.enqueue(job("j", key_id="add::k", fingerprint="f"), job("parked", delay_ms=500))
    shard.watchful = False
    moves = len(shard.look().lines())

    assert restore(shard, "j", head_of("succeeded")) == "ENDED"
    dead = head_of("failed_terminal").removesuffix("- -") + "persistent bad"
    assert restore(shard, "parked", dead) == "ENDED"

    assert len(shard.look().lines()) == moves
    shard.check("j", status="succeeded", place=None, key="succeeded")
    shard.check("parked", status="failed_terminal", place=None, error="persistent bad")
    assert shard.claim() == []
    assert shard.stats()["queued:normal"] == shard.stats()["scheduled:normal"] == 0
    assert shard.redis("PTTL", shard.keys.job("j")) > 0


def test_whoever_runs_a_job_that_is_over_in_postgres_is_told(shard: Shard) -> None:
    claim = shard.take("j")

    assert restore(shard, "j", head_of("succeeded")) == "FLAGGED"

    assert shard.heartbeat(claim)[2] == ["j", "superseded"]


def test_restored_jobs_pass_their_gates_again(shard: Shard) -> None:
    gated = "\nga=0 entity:shipment:7"
    assert restore(shard, "a", head_of("processing"), gated) == "RESTORED"
    assert restore(shard, "b", head_of("queued", attempt=0), gated) == "RESTORED"

    (first,) = shard.claim(limit=2)
    assert shard.settle(first, Success()) == "OK"
    (second,) = shard.claim(limit=2)

    assert {first.job_id, second.job_id} == {"a", "b"}


def test_a_restored_job_keeps_its_place_and_not_what_it_was_granted(shard: Shard) -> None:
    """Each had the entity when it was enqueued, one after the other; the gate knows of neither by now."""
    gated = "\nga=0 entity:shipment:7\npl={}\nhg= entity:shipment:7 "
    for name, place in (("a", 1), ("b", 2), ("c", 3)):
        assert restore(shard, name, head_of("queued", attempt=0), gated.format(place)) == "RESTORED"

    ran = []
    while claims := shard.claim(limit=3):
        (claim,) = claims
        ran.append(claim.job_id)
        shard.settle(claim, Success())

    assert ran == ["a", "b", "c"]


def test_a_held_key_makes_a_later_enqueue_a_duplicate(shard: Shard) -> None:
    assert shard.send(scripts.hold(rows=["add::k", "old f succeeded", 60_000])) == 1
    assert shard.send(scripts.hold(rows=["add::k", "other g succeeded", 60_000])) == 0

    assert shard.put("new", key_id="add::k", fingerprint="f") == "DUPLICATE old succeeded"
    assert 0 < shard.redis("PTTL", shard.keys.key("add::k")) <= 60_000
