"""`explain`: in each of these situations it names the true reason, and the command that helps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from streamworker.core.coalesce import Coalesce
from streamworker.core.outcome import Fail, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.ops.explain import lane
from streamworker.store import manifest, routing, scripts
from streamworker.store.manifest import Declaration
from tests.integration.cli_desk import LEASE_MS, Desk
from tests.servers import BenchServer

HOSTILE = "\x1b]0;owned\x07"


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


@pytest.fixture
def any_desk(server: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(server.url, namespace) as one:
        yield one


def explain(desk: Desk, job_id: str, *options: str) -> dict[str, Any]:
    return dict(desk.json("explain", job_id, "--sample", "0", *options))


def said(found: dict[str, Any]) -> str:
    return " ".join(found["says"])


def publish(desk: Desk, **tasks: Declaration) -> None:
    desk.run(manifest.publish_call(tasks, routing.NO_RULES), tag=desk.keys.namespace_tag)


def a_worker(desk: Desk) -> None:
    """One that lives and serves `normal` and `priority`."""
    assert desk.claim(1, lane="nothing") == []


# --- it waits for its turn ---------------------------------------------------------------------------------


def test_no_worker_is_alive(any_desk: Desk) -> None:
    found = explain(any_desk, any_desk.put())

    assert (found["status"], found["why"]) == ("queued", "no_worker")
    assert found["do"] == ["streamworker run MODULE:APP"]


def test_no_worker_serves_its_lane(desk: Desk) -> None:
    a_worker(desk)

    found = explain(desk, desk.put(lane="bulk"))

    assert found["why"] == "lane_not_served"
    assert "Of 1 living worker none serves lane bulk." in said(found)


def test_no_worker_ever_knew_its_task(desk: Desk) -> None:
    a_worker(desk)
    publish(desk, other=Declaration("normal"))

    found = explain(desk, desk.put("tpyo"))

    assert found["why"] == "unknown_task"
    assert "'tpyo'" in said(found)


def test_it_waits_behind_others(desk: Desk) -> None:
    a_worker(desk)
    before = [desk.put() for _ in range(7)]
    taken = desk.claim(2)
    job_id = desk.put()

    found = explain(desk, job_id)

    assert len(taken) == 2
    assert found["why"] == "in_turn"
    assert found["facts"]["ahead"] == len(before) - 2
    assert "; 5 before it." in said(found)


def test_it_says_when_its_turn_may_come(desk: Desk) -> None:
    a_worker(desk)
    job_id = desk.put()

    found = desk.json("explain", job_id, "--sample", "0.05")

    assert found["facts"]["rate"] == 0
    assert "starts_in_seconds" not in found["facts"]  # nothing moves: there is no estimate to make


def test_jobs_that_come_back_as_fast_as_they_are_taken_are_not_said_to_stand(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a storm of retries each job that is started is soon one that waits again."""
    a_worker(desk)
    first, last = desk.put(), desk.put()

    async def meanwhile(seconds: float) -> None:
        (claim,) = await asyncio.to_thread(desk.claim)
        assert claim.job_id == first
        retry = Retry(60_000, ErrorClass.TRANSIENT, "http_503", "503")
        await asyncio.to_thread(desk.settle, claim, retry)

    monkeypatch.setattr(lane, "sleep", meanwhile)
    found = desk.json("explain", last, "--sample", "0.01")

    assert found["facts"]["rate"] == 0
    assert "no more jobs left the lane than came back" in said(found)
    assert "started" not in said(found)


def test_its_lane_is_paused(desk: Desk) -> None:
    a_worker(desk)
    job_id = desk.put()
    desk.call("pause", "lane:normal", "--reason", f"stock {HOSTILE} count")

    found = explain(desk, job_id)
    shown = desk.call("explain", job_id, "--sample", "0").output

    assert found["why"] == "lane_paused"
    assert found["do"] == ["streamworker resume lane:normal"]
    named = desk.call("explain", job_id, "--app", desk.namespace, env={"STREAMWORKER_NAMESPACE": ""})
    assert f"next: streamworker resume lane:normal --app {desk.namespace}" in named.stderr.splitlines()
    assert "count" in found["facts"]["reason"]
    assert "\x1b" not in shown
    assert "\\x1b]0;owned" in shown


def test_its_tenant_or_task_is_paused_before_a_worker_has_looked(desk: Desk) -> None:
    a_worker(desk)
    job_id = desk.put("pay", tenant="acme")
    for scope in ("tenant:acme", "task:pay"):
        desk.call("pause", scope)

        found = explain(desk, job_id)

        assert (found["why"], found["facts"]["scope"]) == ("paused", scope)
        desk.call("resume", scope, "--over", "0s")


def test_it_waits_behind_others_of_its_tenant(desk: Desk) -> None:
    a_worker(desk)
    ids = [desk.put(tenant="acme") for _ in range(40)]

    found = explain(desk, ids[-1])

    assert found["why"] == "turnstile"
    assert 0 < found["facts"]["ahead"] < 39
    assert "Tenant acme" in said(found)


def test_of_a_tenants_line_it_says_what_stops_it(desk: Desk) -> None:
    a_worker(desk)
    last = [desk.put(tenant="acme") for _ in range(40)][-1]
    desk.call("pause", "tenant:acme", "--reason", "they flood us")

    paused = explain(desk, last)
    desk.call("pause", "lane:normal")
    stopped = explain(desk, last)
    desk.call("resume", "lane:normal", "--at-once")
    desk.redis.delete(desk.keys.worker("w1"))
    alone = explain(desk, last)

    assert (paused["why"], paused["facts"]["scope"]) == ("paused", "tenant:acme")
    assert "they flood us" in said(paused)
    assert stopped["why"] == "lane_paused"
    assert alone["why"] == "no_worker"
    for found in (paused, stopped, alone):
        assert "as many jobs at the head of lane normal as one tenant may" in said(found)


def test_how_long_it_waits_is_since_it_came_back(desk: Desk) -> None:
    a_worker(desk)
    job_id = desk.dead()
    record = desk.record(job_id)
    assert record is not None
    old = str((record.number("at") or 0) - 3_600_000)
    desk.redis.set(desk.keys.job(job_id), replace(record, fields={**record.fields, "at": old}).line())
    desk.call("dlq", "replay", job_id)

    found = said(explain(desk, job_id))

    assert found.startswith("It has waited for its turn in lane normal for ")
    assert "1h" not in found


def test_what_it_will_be_parked_for_comes_before_what_it_has_passed(desk: Desk) -> None:
    a_worker(desk)
    granted = desk.put(gates="0 entity:order:7 pause:dependency:carrier")

    found = explain(desk, granted)
    desk.call("pause", "dependency:carrier", "--reason", "it is down")
    later = explain(desk, granted)

    assert found["why"] == "granted"
    assert "5 s" not in said(found), "an entity's place waits for its job"
    assert (later["why"], later["facts"]["scope"]) == ("paused", "dependency:carrier")


# --- it is parked ------------------------------------------------------------------------------------------


def test_another_job_of_its_entity_runs(any_desk: Desk) -> None:
    gates = "0 entity:order:7"
    first, second, third = (any_desk.put(gates=gates) for _ in range(3))
    any_desk.claim(9)

    found = explain(any_desk, third)

    assert found["why"] == "entity"
    assert (found["facts"]["holders"], found["facts"]["ahead"]) == ([first], 1)
    assert "on worker w1" in said(found)
    assert found["do"] == [f"streamworker explain {first}"]
    assert explain(any_desk, second)["facts"]["ahead"] == 0


def test_a_limit_is_used_up(desk: Desk) -> None:
    gates = "0 concurrency:task:add|2"
    ids = [desk.put(gates=gates) for _ in range(3)]
    desk.claim(9)

    found = explain(desk, ids[2])

    assert found["why"] == "concurrency"
    assert set(found["facts"]["holders"]) == set(ids[:2])
    assert {
        "what": "concurrency:task:add",
        "value": "2",
        "source": "its task, as workers published it",
    } in found["policy"]


def test_a_rate_has_no_token(desk: Desk) -> None:
    gates = "0 rate:task:add|1,3600000,1"
    ids = [desk.put(gates=gates) for _ in range(2)]
    desk.claim(9)

    found = explain(desk, ids[1])

    assert found["why"] == "rate"
    assert found["facts"]["opens_at"] is not None
    assert "the next comes in" in said(found)


def test_a_token_that_has_come_is_not_denied(desk: Desk) -> None:
    gates = "0 rate:task:add|1,1000,1"
    ids = [desk.put(gates=gates) for _ in range(2)]
    desk.claim(9)
    before = int(desk.redis.zscore(desk.keys.timers, "rate:task:add"))
    desk.redis.zadd(desk.keys.timers, {"rate:task:add": before - 60_000})

    found = explain(desk, ids[1])

    assert found["why"] == "rate"
    assert "The next token came 5" in said(found)
    assert "no token left" not in said(found)
    desk.redis.delete(desk.keys.worker("w1"))
    assert "No worker is alive" in said(explain(desk, ids[1]))
    assert "streamworker run MODULE:APP" in explain(desk, ids[1])["do"]


def test_the_pause_of_its_dependency_holds_it(desk: Desk) -> None:
    job_id = desk.put(gates="0 pause:dependency:carrier")
    desk.call("pause", "dependency:carrier", "--for", "10m", "--reason", "carrier is down")
    desk.claim(9)

    found = explain(desk, job_id)

    assert (found["why"], found["facts"]["scope"]) == ("paused", "dependency:carrier")
    assert "carrier is down" in said(found)


# --- it waits for a time -----------------------------------------------------------------------------------


def test_its_producer_asked_for_a_delay(desk: Desk) -> None:
    job = desk.put(delay="1h")

    found = explain(desk, job)

    assert found["why"] == "delayed"
    assert "it is due in 59m" in said(found) or "it is due in 1h" in said(found)


def test_a_try_failed_and_the_next_has_its_time(any_desk: Desk) -> None:
    job_id = any_desk.put()
    (claim,) = any_desk.claim()
    policy = "transient:30000;j=0.1;f=1.0"
    any_desk.settle(claim, Retry(30_000, ErrorClass.TRANSIENT, "http_503", "503", policy))

    found = explain(any_desk, job_id)

    assert (found["status"], found["why"]) == ("retry_scheduled", "retry")
    assert "Attempt 1 failed with http_503 (transient)" in said(found)
    assert found["facts"]["policy"] == policy


def test_it_collects_the_events_of_a_window(desk: Desk) -> None:
    window = Coalesce("collect", window=20.0, by="user:{user}", items="items")
    publish(desk, add=Declaration("normal", arguments=("user", "items"), coalesce=window))

    assert explain(desk, desk.put(delay="20s"))["why"] == "collecting"
    assert explain(desk, desk.put(delay="1h"))["why"] == "delayed", "its producer asked for it"


def test_a_retry_whose_moves_the_log_has_forgotten_is_no_delay(desk: Desk) -> None:
    job_id = desk.put()
    (claim,) = desk.claim()
    desk.settle(claim, Retry(30_000, ErrorClass.TRANSIENT, "http_503", "503"))
    desk.redis.delete(desk.keys.events)

    found = explain(desk, job_id)

    assert found["why"] == "retry"
    assert said(found).startswith("Attempt 1 failed with http_503 (transient)")
    assert "comes from" not in said(found)


def test_overdue_jobs_come_back_by_a_ramp(desk: Desk) -> None:
    job_id = desk.put(delay="1h")
    a_worker(desk)
    record = desk.record(job_id)
    assert record is not None
    until = int(record.fields["du"])
    moved = {**record.fields, "du": str(until - 7_200_000)}
    desk.redis.set(desk.keys.job(job_id), replace(record, fields=moved).line())
    desk.redis.hset(desk.keys.sweep, "overdue", f"{until} 5000 60000")

    found = explain(desk, job_id)

    assert found["why"] == "ramp"
    assert found["do"] == ["streamworker resume overdue --at-once"]


def test_its_deadline_is_over_and_nobody_has_looked(desk: Desk) -> None:
    publish(desk, add=Declaration("normal", deadline_ms=60_000))
    job_id = desk.put(deadline="1m")
    record = desk.record(job_id)
    assert record is not None
    moved = {name: str(int(record.fields[name]) - 120_000) for name in ("dl", "at")}
    fields = {**record.fields, **moved}
    desk.redis.set(desk.keys.job(job_id), replace(record, fields=fields).line())

    alone = explain(desk, job_id)
    a_worker(desk)
    found = explain(desk, job_id)

    assert alone["why"] == "no_worker"
    assert found["why"] == "expiring"
    assert "Its deadline was 1m" in said(found)
    (rule,) = [rule for rule in found["policy"] if rule["what"] == "deadline"]
    assert "ago" in rule["value"]
    assert rule["source"] == "its task, as workers published it"


def test_its_handler_put_it_off(desk: Desk) -> None:
    job_id = desk.put()
    (claim,) = desk.claim()
    desk.settle(claim, Release(Reason.SNOOZED, 60_000))

    assert explain(desk, job_id)["why"] == "snoozed"


def test_no_worker_that_took_it_knew_its_task(desk: Desk) -> None:
    job_id = desk.put("gone")
    (claim,) = desk.claim()
    desk.settle(claim, Release(Reason.UNKNOWN_TASK, 1_000))

    found = explain(desk, job_id)

    assert found["why"] == "unknown_task"
    assert "After an hour" in said(found)


def test_it_is_due_and_nobody_moves_it(desk: Desk) -> None:
    job_id = desk.put(delay="1h")
    record = desk.record(job_id)
    assert record is not None
    due = str(int(record.fields["du"]) - 7_200_000)
    desk.redis.set(desk.keys.job(job_id), replace(record, fields={**record.fields, "du": due}).line())

    found = explain(desk, job_id)
    a_worker(desk)

    assert found["why"] == "no_worker"
    assert "It is due since 59m" in said(found) or "It is due since 1h" in said(found)
    assert explain(desk, job_id)["why"] == "due"


# --- a worker has it ---------------------------------------------------------------------------------------


def test_it_is_claimed_or_runs(desk: Desk) -> None:
    publish(desk, add=Declaration("normal", timeout=300.0))
    job_id = desk.put()
    (claim,) = desk.claim()

    claimed = explain(desk, job_id)
    assert claimed["why"] == "claimed"
    assert said(claimed).startswith("Worker w1 took it ")
    desk.mark(claim)

    found = explain(desk, job_id)
    assert found["why"] == "running"
    assert "on worker w1, attempt 1" in said(found)
    assert "Its time limit ends it in" in said(found)


def test_it_was_cancelled_while_it_runs(desk: Desk) -> None:
    job_id = desk.put()
    (claim,) = desk.claim()
    desk.mark(claim)
    desk.call("jobs", "cancel", job_id)
    found = explain(desk, job_id)
    record = desk.record(job_id)
    assert record is not None
    fields = {**record.fields, "cx": "expired"}
    desk.redis.set(desk.keys.job(job_id), replace(record, fields=fields).line())

    assert found["why"] == "cancelling"
    assert said(found).startswith("It was cancelled while worker w1 runs it")
    assert said(explain(desk, job_id)).startswith("Its deadline came while worker w1 runs it")


def test_its_worker_is_gone(desk: Desk) -> None:
    job_id = desk.put()
    desk.claim()
    desk.age_lease(job_id, LEASE_MS + 1_000)

    found = explain(desk, job_id)

    assert found["why"] == "worker_lost"
    assert "Worker w1 has not renewed its lease" in said(found)


# --- it is over --------------------------------------------------------------------------------------------


def test_it_succeeded(desk: Desk) -> None:
    job_id = desk.put()
    desk.settle(desk.claim()[0], Success(b"1"))

    found = explain(desk, job_id)

    assert (found["status"], found["why"]) == ("succeeded", "succeeded")
    assert found["facts"]["finished_at"] is not None


def test_it_failed_for_good(desk: Desk) -> None:
    job_id = desk.dead(code="bad_total", error=HOSTILE)

    found = explain(desk, job_id)

    assert found["why"] == "bad_total"
    assert found["do"] == [f"streamworker dlq show {job_id}", f"streamworker dlq replay {job_id}"]
    assert "\x1b" not in desk.call("explain", job_id).output


def test_it_was_cancelled_and_needs_nobody(desk: Desk) -> None:
    job_id = desk.put()
    desk.call("jobs", "cancel", job_id)

    found = explain(desk, job_id)

    assert found["why"] == "cancelled"
    assert found["do"] == [f"streamworker jobs show {job_id}"]


def test_a_letter_that_is_gone_is_not_offered(desk: Desk) -> None:
    job_id = desk.dead()
    assert explain(desk, job_id)["do"][-1] == f"streamworker dlq replay {job_id}"
    desk.redis.delete(desk.keys.dlq)

    found = explain(desk, job_id)

    assert "cannot be replayed" in said(found)
    assert found["do"] == [f"streamworker jobs show {job_id}"]


def test_a_worker_died_three_times(desk: Desk) -> None:
    job_id = desk.put()
    (claim,) = desk.claim()
    desk.settle(claim, Fail(ErrorClass.UNKNOWN, "crash_loop", "worker w1 stopped", Reason.DIED))

    assert "Three workers died" in said(explain(desk, job_id))


def test_redis_has_forgotten_it_but_its_letter_is_there(desk: Desk) -> None:
    job_id = desk.dead()
    desk.forget(job_id)

    found = explain(desk, job_id)

    assert (found["status"], found["why"]) == ("failed_terminal", "bad_total")


def test_its_record_is_gone_and_the_log_has_it_as_open(desk: Desk) -> None:
    job_id = desk.put()
    desk.forget(job_id)

    found = explain(desk, job_id)

    assert (found["status"], found["why"]) == ("queued", "missing")
    assert "its record is gone" in said(found)
    assert "failed" not in said(found)


def test_nobody_knows_it(desk: Desk) -> None:
    assert "019f8f2e-0000-7000-8000-000000000000" in desk.refused(
        "explain", "019f8f2e-0000-7000-8000-000000000000"
    )
    assert desk.refused("explain", "x", code=2).startswith("job id 'x'")


# --- the policy --------------------------------------------------------------------------------------------


def test_the_policy_says_where_each_part_comes_from(desk: Desk) -> None:
    publish(desk, add=Declaration("normal", timeout=20.0, retry="30s, 2m"))
    job_id = desk.put(gates="0 concurrency:task:add|2", deadline="1h")
    desk.run(scripts.declare(clock="", lanes="priority normal", rows=("declared:concurrency:task:add", "2")))
    desk.call("limits", "set", "concurrency:task:add", "5")

    rules = {rule["what"]: rule for rule in explain(desk, job_id)["policy"]}

    assert (rules["retry"]["value"], rules["timeout"]["value"]) == ("30s, 2m", "20s")
    assert rules["deadline"]["source"] == "its producer"
    assert rules["concurrency:task:add"]["value"] == "5"
    assert rules["concurrency:task:add"]["source"].startswith("an operator")
