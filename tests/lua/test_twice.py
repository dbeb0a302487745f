"""Every script sent twice has the effect of once: a lost reply can always be answered by sending again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import scripts, settle_rows
from tests.lua.driver import LEASE, LIVENESS, RETENTION, Shard, job, plan_of
from tests.lua.merging import WINDOW, event

FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")
RETRY = Retry(700, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")
LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "", "-", Reason.RECOVERED)
KEYED: dict[str, Any] = {"key_id": "add::k", "fingerprint": "f", "deadline_ms": 90_000}
Arrange = Callable[[Shard], scripts.Call]


def enqueue(shard: Shard) -> scripts.Call:
    rows = [*job("a", **KEYED).row(), *job("b", delay_ms=500).row(), *job("c", **KEYED).row()]
    return scripts.enqueue(clock=shard.clock, rows=rows)


def _settle(outcome: Outcome) -> Arrange:
    def arrange(shard: Shard) -> scripts.Call:
        claim = shard.take("j", **KEYED)
        shard.watch("j", wait=1)
        return shard.settle_call(settle_rows.outcome_row(claim, outcome, 5))

    return arrange


def settle_ordinary_jobs(shard: Shard) -> scripts.Call:
    shard.enqueue(job("a"), job("b"))
    rows = [word for held in shard.claim() for word in settle_rows.outcome_row(held, Success(b"7"), 5)]
    return shard.settle_call(rows)


def mark(shard: Shard) -> scripts.Call:
    return shard.settle_call(settle_rows.mark_row(shard.take("j"), 20))


def recovery(shard: Shard) -> scripts.Call:
    shard.pass_hold()
    shard.take("j")
    shard.elapse(LEASE)
    (candidate,) = shard.found_dead()
    return shard.settle_call(settle_rows.recovery_row(candidate, LOST))


def exchange(shard: Shard) -> scripts.Call:
    claim = shard.take("a", **KEYED)
    shard.put("b")
    return shard.exchange_call(settle_rows.outcome_row(claim, RETRY, 5), limit=10)


def exchange_ordinary_jobs(shard: Shard) -> scripts.Call:
    held = shard.take("a")
    shard.put("b")
    return shard.exchange_call(settle_rows.outcome_row(held, Success(b"7"), 5), limit=10)


def claim(shard: Shard) -> scripts.Call:
    shard.enqueue(job("a"), job("b"))
    shard.session()
    return shard.claim_call(limit=10)


def claim_of_an_offer(shard: Shard) -> scripts.Call:
    lost = shard.take("a")
    shard.session()
    return shard.claim_call(limit=10, offers=[shard.offer_of(lost)])


def claim_without_a_slot(shard: Shard) -> scripts.Call:
    lost = shard.take("a")
    shard.put("b")
    (offer,) = shard.deliver("w1")
    shard.session()
    return shard.claim_call(limit=0, offers=[offer, shard.offer_of(lost)])


def claim_of_a_new_group(shard: Shard) -> scripts.Call:
    shard.take("a", "w1")
    shard.put("b")
    shard.session("w2")
    shard.redis("XGROUP", "DESTROY", shard.keys.stream("normal"), "workers")
    return shard.claim_call("w2", limit=10)


def heartbeat(shard: Shard) -> scripts.Call:
    held = shard.take("j")
    shard.elapse(1000)
    rows: list[str | int] = [held.job_id, held.fence, "unknown", 1]
    return scripts.heartbeat(clock=shard.clock, worker="w1", lease_ms=LEASE, liveness_ms=LIVENESS, rows=rows)


def recover(shard: Shard) -> scripts.Call:
    shard.pass_hold()
    shard.enqueue(*(job(f"j{i}") for i in range(4)))
    dead, alive, waiting = shard.claim(limit=2), shard.claim(limit=1), shard.deliver("w1")
    assert len(dead) == 2
    assert len(waiting) == 1
    shard.elapse(LEASE - 1)
    shard.heartbeat(*alive)
    shard.elapse(1)
    shard.idle(alive[0], LEASE)
    return shard.recover_call()


def repair(shard: Shard) -> scripts.Call:
    shard.enqueue(job("gone"), job("parked", delay_ms=500))
    shard.delete_entry("gone")
    shard.tampered.add("parked")
    shard.redis("ZREM", shard.keys.schedule, "parked")
    return scripts.repair(clock=shard.clock, worker="keeper", retention_ms=RETENTION, rows=["gone", "parked"])


def promote(shard: Shard) -> scripts.Call:
    shard.take("held", deadline_ms=100)
    shard.enqueue(job("due", delay_ms=100), job("late", deadline_ms=100), job("later", delay_ms=101))
    shard.elapse(100)
    return scripts.promote(clock=shard.clock, worker="keeper", retention_ms=RETENTION, limit=500)


def cancel(shard: Shard) -> scripts.Call:
    shard.take("held", lane="other")
    shard.enqueue(job("queued", **KEYED), job("parked", delay_ms=500))
    rows = [word for job_id in ("held", "queued", "parked", "unknown") for word in (job_id, "-")]
    return scripts.cancel(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)


def hasten(shard: Shard) -> scripts.Call:
    shard.take("held", lane="other")
    shard.enqueue(job("queued"), job("delayed", delay_ms=500, tenant="acme"))
    return scripts.hasten(
        clock=shard.clock,
        actor="operator",
        retention_ms=RETENTION,
        rows=["held", "queued", "delayed", "unknown"],
    )


GATES = "0 entity:e:7 concurrency:c|2"


def _queue(shard: Shard) -> list[Claim]:
    """Two jobs hold a gate, and two others wait at it."""
    shard.enqueue(*(job(f"j{i}", gates="0 concurrency:c|2", lane="other") for i in range(4)))
    return shard.claim(plan=plan_of("other"))


def claim_at_gates(shard: Shard) -> scripts.Call:
    rates = "0 rate:r|10,1000,1 entity:e:7 concurrency:c|2"
    shard.enqueue(
        *(job(f"j{i}", gates=rates) for i in range(3)), *(job(f"k{i}", gates=GATES) for i in range(3))
    )
    shard.session()
    return shard.claim_call(limit=10)


def settle_at_gates(shard: Shard) -> scripts.Call:
    claims = _queue(shard)
    rows = [word for claim in claims for word in settle_rows.outcome_row(claim, Success(), 5)]
    return shard.settle_call(rows)


def claim_a_grant(shard: Shard) -> scripts.Call:
    shard.settle(_queue(shard)[0], Success())
    return shard.claim_call(limit=10, plan=plan_of("other"))


def take_over(shard: Shard) -> scripts.Call:
    """The first waiter's grant went to the second; now the first comes."""
    shard.settle(_queue(shard)[0], Success())
    shard.elapse(5000)
    shard.wake()
    return shard.claim_call(limit=10, plan=plan_of("other"))


def wake(shard: Shard) -> scripts.Call:
    shard.settle(_queue(shard)[0], Success())
    shard.tune("pause", "task:add")
    shard.claim(limit=8)
    shard.tune("resume", "task:add", 0)
    shard.elapse(5000)
    return scripts.wake(clock=shard.clock, worker="keeper", retention_ms=RETENTION, limit=100)


def _cancel_at_gates(job_id: str) -> Arrange:
    def arrange(shard: Shard) -> scripts.Call:
        shard.settle(_queue(shard)[0], Success())
        return scripts.cancel(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=[job_id, "-"])

    return arrange


def cancel_at_the_turnstile(shard: Shard) -> scripts.Call:
    shard.enqueue(*(job(f"t{i}", tenant="acme") for i in range(18)))
    rows = ["t3", "-", "t17", "-"]
    return scripts.cancel(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)


def promote_at_the_turnstile(shard: Shard) -> scripts.Call:
    shard.enqueue(*(job(f"d{i}", tenant="acme", delay_ms=100) for i in range(2)))
    shard.enqueue(*(job(f"t{i}", tenant="acme") for i in range(15)))
    shard.elapse(100)
    return scripts.promote(clock=shard.clock, worker="keeper", retention_ms=RETENTION, limit=500)


def enqueue_at_the_turnstile(shard: Shard) -> scripts.Call:
    shard.enqueue(*(job(f"t{i}", tenant="acme") for i in range(15)))
    rows = [word for i in range(2) for word in job(f"n{i}", tenant="acme").row()]
    return scripts.enqueue(clock=shard.clock, rows=rows)


def lock_acquire(shard: Shard) -> scripts.Call:
    return scripts.lock_acquire(clock=shard.clock, name="order:7", holder="j:5", ttl_ms=60_000, floor=0)


def lock_release(shard: Shard) -> scripts.Call:
    shard.send(lock_acquire(shard))
    return scripts.lock_release(name="order:7", holder="j:5")


def lock_extend(shard: Shard) -> scripts.Call:
    shard.send(lock_acquire(shard))
    shard.redis("PERSIST", shard.keys.lock("order:7"))
    shard.watchful = False
    return scripts.lock_extend(name="order:7", holder="j:5", ttl_ms=60_000)


def fold(shard: Shard) -> scripts.Call:
    shard.redis("HSET", shard.keys.stats, "recovered:normal:made_up", 3)
    return scripts.fold(rows=("stats", "recovered:normal:made_up", "recovered:normal:other"))


def tune(shard: Shard) -> scripts.Call:
    _queue(shard)
    shard.tune("pause", "task:add")
    rows = [
        "pause",
        "lane:other",
        "500",
        "sick",
        "resume",
        "task:add",
        "60000",
        "-",
        "limit",
        "concurrency:c",
        "3",
        "-",
    ]
    return scripts.tune(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)


def drain(shard: Shard) -> scripts.Call:
    shard.declare(drain="10,1000,2")
    shard.enqueue(
        *(job(name, backlog="asked", tenant="acme", **KEYED | {"key_id": f"add::{name}"}) for name in "abc")
    )
    return shard.drain_call()


def enqueue_over_bounds(shard: Shard) -> scripts.Call:
    shard.declare(admission="depth normal 1 backlog\nbacklog normal 1 reject")
    shard.tune("throttle", "tenant:acme", "1,1000,1 backlog")
    rows = [
        job("a"),
        job("b", **KEYED),
        job("c", lane="other", tenant="acme"),
        job("d", lane="other", tenant="acme"),
    ]
    return scripts.enqueue(clock=shard.clock, rows=[word for one in rows for word in one.row()])


def _coalesce(mode: str, *, limit: int = 10, before: int = 1) -> Arrange:
    def arrange(shard: Shard) -> scripts.Call:
        events = [event(f"e{i}", mode, limit=limit, key_id=f"add::e{i}", fingerprint="f") for i in range(4)]
        shard.coalesce(*events[:before])
        rows = [word for one in events[before:] for word in one.row()]
        return scripts.coalesce(clock=shard.clock, rows=rows)

    return arrange


def settle_a_merged(outcome: Outcome) -> Arrange:
    def arrange(shard: Shard) -> scripts.Call:
        shard.coalesce(*(event(f"e{i}", key_id=f"add::e{i}", fingerprint="f") for i in range(3)))
        shard.elapse(WINDOW)
        shard.promote()
        return shard.settle_call(settle_rows.outcome_row(shard.claim_one(), outcome, 5))

    return arrange


def declare(shard: Shard) -> scripts.Call:
    shard.declare(**{"concurrency:c": "2"})
    return scripts.declare(clock=shard.clock, lanes="a b", rows=["concurrency:c", "3", "rate:x", "1,1,1"])


def _letter(shard: Shard) -> list[str]:
    shard.settle(shard.take("j", **KEYED), FATAL)
    return shard.named(shard.letter("j"))


def replay(shard: Shard) -> scripts.Call:
    rows = [*_letter(shard), "-"]
    return scripts.replay(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)


def replay_after_retention(shard: Shard) -> scripts.Call:
    rows = _letter(shard)
    shard.forget_record("j")
    rows.append("-")
    return scripts.replay(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)


def discard(shard: Shard) -> scripts.Call:
    rows = _letter(shard)
    return scripts.discard(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)


def forget(shard: Shard) -> scripts.Call:
    shard.settle(shard.take("j"), Success())
    return scripts.forget(worker="w1", leave=1, rows=["normal"])


def pressure(shard: Shard) -> scripts.Call:
    return scripts.pressure(rows=["normal", "high", "bulk", "ok"])


def elect(shard: Shard) -> scripts.Call:
    return scripts.elect(role="keeper", worker="w1", ttl_ms=10_000)


def _cron(overlap: str, *, held: bool = False) -> Arrange:
    """The second tick of a cron whose first job is open."""

    def call(shard: Shard) -> scripts.Call:
        return scripts.cron(
            clock=shard.clock,
            worker="w1",
            retention_ms=RETENTION,
            name="add",
            tick=shard.now,
            ttl_ms=60_000,
            overlap=overlap,
            schedule="UTC * * * * *",
            rows=job(f"j{shard.now}").row(),
        )

    def arrange(shard: Shard) -> scripts.Call:
        shard.send(call(shard))
        if held:
            shard.claim_one()
        shard.elapse(1000)
        return call(shard)

    return arrange


def note_a_cron(shard: Shard, schedule: str = "UTC * * * * *", was: str = "") -> scripts.Call:
    return scripts.cron(
        clock=shard.clock,
        worker="w1",
        retention_ms=RETENTION,
        name="add",
        tick="",
        ttl_ms=0,
        overlap="skip",
        schedule=schedule,
        was=was,
        rows=(),
    )


def change_the_schedule_of_a_cron(shard: Shard) -> scripts.Call:
    shard.send(note_a_cron(shard))
    return note_a_cron(shard, "UTC 0 * * * *", was="UTC * * * * *")


def recall(shard: Shard) -> scripts.Call:
    shard.send(note_a_cron(shard))
    return scripts.recall(rows=["add", shard.now - 1000, "j1"])


def publish(shard: Shard) -> scripts.Call:
    return scripts.publish(rows=["task:pack", '{"lane":"a"}', "routing", "{}"])


def mirrored(shard: Shard) -> scripts.Call:
    shard.redis("HSET", shard.keys.policies, "mirror", "m1")
    shard.put("j")
    shard.watchful = False  # the log goes
    (entry,) = shard.look().streams["events"]
    return scripts.mirrored(rows=[entry, 100, "1-1", 100])


def tune_with_a_time(shard: Shard) -> scripts.Call:
    shard.tune("limit", "concurrency:g", "5")
    rows = ["limit", "concurrency:g", "2;for=1000", "x", "retries", "add", "multiply=2.0", "x"]
    return scripts.tune(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)


def undo(shard: Shard) -> scripts.Call:
    shard.tune("slots", "normal", "9,9")
    rows = ["expect", "slots normal", "1", "1", "slots", "normal", "", "takes back 1"]
    return scripts.tune(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)


def wake_a_setting(shard: Shard) -> scripts.Call:
    shard.tune("slots", "normal", "9,9;for=1000")
    shard.elapse(1000)
    return scripts.wake(clock=shard.clock, worker="keeper", retention_ms=RETENTION, limit=100)


def purge(shard: Shard) -> scripts.Call:
    shard.enqueue(job("a", **KEYED), job("b", delay_ms=500), job("c", tenant="acme"))
    rows = [word for name in "abc" for word in (name, "0")]
    return scripts.purge(
        clock=shard.clock,
        actor="operator",
        retention_ms=RETENTION,
        lane="normal",
        places="rqat-",
        why="purged",
        rows=rows,
    )


def restore(shard: Shard) -> scripts.Call:
    head = "processing 2 3 0 6 0 normal add 1 - - -"
    more, cancelled = "\nky=add::k\nkf=f", "\nky=add::c\nkf=f\ncx=cancelled"
    rows = ["j", head, "env of j", more, "E: e", "k", head, "env of k", more, ""]
    rows += ["c", head, "env of c", cancelled, ""]
    return scripts.restore(clock=shard.clock, actor="mirror", retention_ms=RETENTION, rows=rows)


def restore_behind(shard: Shard) -> scripts.Call:
    shard.enqueue(job("waiting"), job("over"))
    shard.cancel("over")
    head = "retry_scheduled 1 1 0 4 0 normal add 1 - - -"
    rows = [word for each in ("waiting", "over") for word in (each, head, "", "", "")]
    return scripts.restore(clock=shard.clock, actor="mirror", retention_ms=RETENTION, rows=rows)


def restore_an_end(shard: Shard) -> scripts.Call:
    shard.enqueue(job("held"), job("waiting"))
    shard.claim_one()
    shard.watchful = False  # it ends as Postgres knows, which the log of Redis does not
    rows = [
        word
        for each in ("held", "waiting")
        for word in (each, "succeeded 1 1 0 4 0 normal add 1 - - -", "", "", "")
    ]
    return scripts.restore(clock=shard.clock, actor="mirror", retention_ms=RETENTION, rows=rows)


def hold(shard: Shard) -> scripts.Call:
    return scripts.hold(rows=["add::k", "j f succeeded", 60_000])


def look(shard: Shard) -> scripts.Call:
    shard.put("j")
    return scripts.watch(clock=shard.clock, job_id="j", wait=0)


def edit_a_letter(shard: Shard) -> scripts.Call:
    shard.settle(shard.take("j"), FATAL)
    rows = (*shard.named(shard.letter("j")), "new env", "n:1")
    return scripts.dlq_edit(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)


def _import(*, forgotten: bool) -> Arrange:
    def arrange(shard: Shard) -> scripts.Call:
        shard.settle(shard.take("j"), FATAL)
        letter = shard.letter("j")
        fields = shard.look().streams["dlq"][letter]
        shard.discard(letter)
        if forgotten:
            shard.forget_record("j")
        flat: list[Any] = [word for pair in fields.items() for word in pair]
        rows = ("j", "0", len(flat), *flat)
        return scripts.dlq_import(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)

    return arrange


def trim_letters(shard: Shard) -> scripts.Call:
    for name in "ab":
        shard.settle(shard.take(name), FATAL)
    return scripts.dlq_trim(
        clock=shard.clock, worker="w", retention_ms=RETENTION, max_age_ms=LEASE, max_count=1, limit=9
    )


def ask_the_cache(shard: Shard) -> scripts.Call:
    return scripts.cache_ask(name="a", version="0", token="t", hold_ms=10_000)


def keep_in_the_cache(shard: Shard) -> scripts.Call:
    shard.send(ask_the_cache(shard))
    return scripts.cache_keep(name="a", version=1, token="t", ttl_ms=10_000, entry=b"1 x")


CASES: dict[str, Arrange] = {
    "enqueue": enqueue,
    "settle: success": _settle(Success(b"x" * 100)),
    "settle: ordinary": settle_ordinary_jobs,
    "settle: retry": _settle(RETRY),
    "settle: retry at once": _settle(Retry(0, ErrorClass.UNKNOWN, "value_error", "ValueError: x")),
    "settle: fail": _settle(FATAL),
    "settle: release": _settle(Release(Reason.SHUTDOWN)),
    "settle: snooze": _settle(Release(Reason.SNOOZED, 700)),
    "settle: mark": mark,
    "settle: recovery": recovery,
    "exchange": exchange,
    "exchange: ordinary": exchange_ordinary_jobs,
    "claim": claim,
    "claim: offered again": claim_of_an_offer,
    "claim: no slot": claim_without_a_slot,
    "claim: new group": claim_of_a_new_group,
    "heartbeat": heartbeat,
    "recover": recover,
    "repair": repair,
    "promote": promote,
    "cancel": cancel,
    "hasten": hasten,
    "replay": replay,
    "replay: record gone": replay_after_retention,
    "discard": discard,
    "dlq/edit": edit_a_letter,
    "dlq/import": _import(forgotten=False),
    "dlq/import: record gone": _import(forgotten=True),
    "dlq/trim": trim_letters,
    "cache/ask": ask_the_cache,
    "cache/keep": keep_in_the_cache,
    "forget": forget,
    "elect": elect,
    "pressure": pressure,
    "cron: new": note_a_cron,
    "cron: another schedule": change_the_schedule_of_a_cron,
    "cron: skip": _cron("skip"),
    "cron: queue": _cron("queue"),
    "cron: replace": _cron("replace"),
    "cron: replace a held one": _cron("replace", held=True),
    "publish": publish,
    "mirrored": mirrored,
    "restore": restore,
    "restore: over": restore_an_end,
    "restore: behind": restore_behind,
    "hold": hold,
    "recall": recall,
    "watch": look,
    "claim: gates": claim_at_gates,
    "claim: a grant": claim_a_grant,
    "claim: takes over": take_over,
    "cancel: turnstile": cancel_at_the_turnstile,
    "promote: turnstile": promote_at_the_turnstile,
    "enqueue: turnstile": enqueue_at_the_turnstile,
    "settle: gates": settle_at_gates,
    "cancel: at a gate": _cancel_at_gates("j3"),
    "cancel: granted": _cancel_at_gates("j2"),
    "wake": wake,
    "lock/acquire": lock_acquire,
    "lock/extend": lock_extend,
    "lock/release": lock_release,
    "fold": fold,
    "tune": tune,
    "tune: a time": tune_with_a_time,
    "tune: undo": undo,
    "wake: a setting": wake_a_setting,
    "purge": purge,
    "declare": declare,
    "drain": drain,
    "enqueue: over bounds": enqueue_over_bounds,
    "coalesce: opens": _coalesce("collect", before=0),
    "coalesce: merges": _coalesce("collect"),
    "coalesce: latest": _coalesce("latest"),
    "coalesce: full": _coalesce("collect", limit=3),
    "coalesce: full at once": _coalesce("collect", limit=2, before=0),
    "settle: merged": settle_a_merged(Success()),
    "settle: merged fails": settle_a_merged(FATAL),
}


def effects(shard: Shard) -> dict[str, Any]:
    """All state but the counters of what led nowhere: an offer that was served counts as missing."""
    state = shard.look().without_times()
    state["hashes"]["stats"] = {
        name: value
        for name, value in state["hashes"].get("stats", {}).items()
        if not name.startswith((b"claims:", b"duplicate:", b"conflict:", b"rejected:"))
    }
    return state


@pytest.mark.parametrize("arrange", CASES.values(), ids=CASES.keys())
def test_a_call_sent_twice_has_the_effect_of_once(shard: Shard, arrange: Arrange) -> None:
    call = arrange(shard)
    untouched = effects(shard)
    shard.send(call)
    once = effects(shard)

    shard.send(call)

    assert effects(shard) == once
    if call.script.name != "watch":
        assert once != untouched, "the first call did something"


def test_every_script_is_among_the_cases() -> None:
    """`session` and a registering `watch` count up, which is what they are for; see the tests below."""
    from streamworker.store import lua

    assert {name.partition(":")[0] for name in CASES} | {"session"} == set(lua.names())


def test_a_session_asked_for_twice_is_two_sessions_and_only_the_last_counts(shard: Shard) -> None:
    shard.put("j")
    lost, current = shard.session(), shard.session()

    assert current > lost
    assert shard.send(shard.claim_call(session=lost)) == [b"NOSESSION", []]
    assert len(shard.claim(session=current)) == 1


def test_a_registration_sent_twice_wakes_twice_and_expires(shard: Shard) -> None:
    held = shard.take("j")
    shard.watch("j", wait=1)
    shard.watch("j", wait=1)

    shard.settle(held, Success())

    assert len(shard.look().lists["done:j"]) == 2
    assert shard.look().ttls["done:j"] > 0


def test_a_claim_that_comes_late_after_a_new_session_finds_nothing(shard: Shard) -> None:
    shard.enqueue(job("a"), job("b"))
    shard.session()
    late = shard.claim_call(limit=1, plan=plan_of("normal"))
    shard.session()
    before = shard.look()

    assert shard.send(late) == [b"NOSESSION", []]

    assert shard.look().without_times() == before.without_times()
