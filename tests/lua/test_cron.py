"""cron: one job for each tick, whatever the workers' clocks say, and what an open job means for the next."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Fail, Success
from streamworker.core.states import ErrorClass
from streamworker.store import scripts
from tests.lua.driver import LEASE, RETENTION, START, Shard, job

SECOND = 1000
TTL = 60_000


MINUTELY, HOURLY = "UTC * * * * *", "Europe/Berlin 0 * * * *"


def call(
    shard: Shard,
    tick: int | None,
    *,
    overlap: str = "skip",
    worker: str = "w1",
    marker: str = "",
    schedule: str = MINUTELY,
    was: str = "",
) -> scripts.Call:
    rows = () if tick is None else job(f"j{tick}", task="sweep").row()
    return scripts.cron(
        clock=shard.clock,
        worker=worker,
        retention_ms=RETENTION,
        marker=marker,
        name="sweep",
        tick="" if tick is None else tick,
        ttl_ms=TTL,
        overlap=overlap,
        schedule=schedule,
        was=was,
        rows=rows,
    )


def ask(shard: Shard, tick: int | None, *, overlap: str = "skip", worker: str = "w1") -> tuple[str, int, str]:
    """(verdict, last tick, its job); the reply says what time it is."""
    verdict, now, last, job_id, *_ = shard.send(call(shard, tick, overlap=overlap, worker=worker))
    assert int(now) == shard.now
    return verdict.decode(), int(last), job_id.decode()


def state_of(shard: Shard) -> str | None:
    value = shard.look().hashes.get("crons", {}).get(b"sweep")
    return None if value is None else value.decode()


def key_of(tick: int) -> str:
    return f"cron:sweep:{tick}"


def finish(shard: Shard, job_id: str) -> None:
    """Run the job that waits to its end."""
    claim = shard.claim_one()
    assert claim.job_id == job_id
    assert shard.settle(claim, Success()) == "OK"


def test_a_tick_that_has_come_is_one_job_whoever_asks(shard: Shard) -> None:
    assert ask(shard, START) == ("OK", START, f"j{START}")
    assert ask(shard, START, worker="w2") == ("ALREADY", START, f"j{START}")

    shard.check(f"j{START}", status="queued", place="a")
    assert shard.edges(f"j{START}") == ["->queued"]
    assert shard.stats()["enqueued:normal:sweep"] == 1
    assert 0 < shard.look().ttls[key_of(START)] <= TTL


def test_a_worker_whose_clock_is_ahead_is_told_to_wait(shard: Shard) -> None:
    assert ask(shard, START + 1) == ("EARLY", START, "-")

    assert shard.look().records() == {}
    shard.now += 1
    assert ask(shard, START + 1)[0] == "OK"


def test_the_end_of_a_job_does_not_free_its_tick(shard: Shard) -> None:
    """B40: a job of a millisecond, and a worker that asks after its end and after its record has gone."""
    ask(shard, START)
    finish(shard, f"j{START}")
    assert ask(shard, START, worker="w2")[0] == "ALREADY"

    shard.forget_record(f"j{START}")

    assert ask(shard, START, worker="w2")[0] == "ALREADY"
    shard.redis("DEL", f"{shard.keys.tag}:{key_of(START)}")
    assert ask(shard, START, worker="w2")[0] == "ALREADY", "what counted last is kept beside the key"


def test_a_cron_that_is_new_has_missed_nothing(shard: Shard) -> None:
    assert ask(shard, None) == ("ALREADY", START, "-")
    assert ask(shard, START - SECOND)[0] == "ALREADY"
    shard.now += SECOND

    assert ask(shard, None) == ("ALREADY", START, "-"), "noted once"
    assert ask(shard, START + SECOND)[0] == "OK"


def test_a_tick_before_the_last_one_does_not_count(shard: Shard) -> None:
    """Of missed ticks the latest runs; another worker may still go through them one by one."""
    shard.now += 10 * SECOND
    ask(shard, START + 9 * SECOND)

    assert ask(shard, START + 3 * SECOND)[0] == "ALREADY"
    assert ask(shard, START + 10 * SECOND, overlap="queue")[0] == "OK"


def test_a_clock_that_is_put_back_stops_no_cron_and_repeats_no_tick(shard: Shard) -> None:
    shard.now += 3600 * SECOND
    ask(shard, START + 3600 * SECOND)
    finish(shard, f"j{START + 3600 * SECOND}")
    shard.now = START

    assert ask(shard, START)[0] == "OK", "its last tick is in the future by now"
    assert ask(shard, START)[0] == "ALREADY"
    shard.now += 3600 * SECOND
    assert ask(shard, START + 3600 * SECOND)[0] == "ALREADY", "the key still knows it"


@pytest.mark.parametrize("held", [False, True])
def test_skip_counts_the_ticks_of_a_job_that_is_open(shard: Shard, held: bool) -> None:
    ask(shard, START)
    if held:
        shard.claim_one()
    shard.now += SECOND

    assert ask(shard, START + SECOND) == ("SKIPPED", START + SECOND, f"j{START}")
    assert ask(shard, START + SECOND, worker="w2")[0] == "ALREADY", "skipped once"

    assert set(shard.look().records()) == {f"j{START}"}
    assert shard.stats()["cron_skipped:sweep"] == 1
    assert shard.audits() == [f"j{START} 0 cron_skipped"]


@pytest.mark.parametrize("end", ["success", "dead", "gone"])
def test_skip_runs_again_once_the_job_is_over(shard: Shard, end: str) -> None:
    ask(shard, START)
    claim = shard.claim_one()
    outcome = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x") if end == "dead" else Success()
    shard.settle(claim, outcome)
    if end == "gone":
        shard.forget_record(claim.job_id)
    shard.now += SECOND

    assert ask(shard, START + SECOND) == ("OK", START + SECOND, f"j{START + SECOND}")


def test_queue_enqueues_every_tick(shard: Shard) -> None:
    ask(shard, START, overlap="queue")
    shard.now += SECOND

    assert ask(shard, START + SECOND, overlap="queue")[0] == "OK"

    assert len(shard.claim()) == 2


def test_replace_ends_the_job_that_waits(shard: Shard) -> None:
    ask(shard, START, overlap="replace")
    shard.now += SECOND

    assert ask(shard, START + SECOND, overlap="replace") == ("OK", START + SECOND, f"j{START + SECOND}")

    shard.check(f"j{START}", status="failed_terminal", error="persistent superseded", dead=None)
    assert [claim.job_id for claim in shard.claim()] == [f"j{START + SECOND}"]


def test_replace_flags_the_job_that_runs_and_a_success_of_it_stands(shard: Shard) -> None:
    ask(shard, START, overlap="replace")
    claim = shard.claim_one()
    shard.now += SECOND

    ask(shard, START + SECOND, overlap="replace")

    assert shard.heartbeat(claim) == ("OK", [], [f"j{START}", "superseded"])
    assert shard.audits() == [f"j{START} 0 cancel_requested"]
    assert shard.settle(claim, Success()) == "OK"
    shard.check(f"j{START}", status="succeeded")


def test_replace_ends_the_job_that_was_cancelled_meanwhile(shard: Shard) -> None:
    ask(shard, START, overlap="replace")
    claim = shard.claim_one()
    shard.now += SECOND
    ask(shard, START + SECOND, overlap="replace")

    shard.settle(claim, Fail(ErrorClass.PERSISTENT, "cancelled", "cancelled while running"))

    shard.check(f"j{START}", status="failed_terminal", error="persistent superseded", dead=None)


def test_a_user_s_cancel_of_the_running_job_is_not_overwritten(shard: Shard) -> None:
    ask(shard, START, overlap="replace")
    claim = shard.claim_one()
    shard.cancel(f"j{START}")
    shard.now += SECOND

    ask(shard, START + SECOND, overlap="replace")

    assert shard.heartbeat(claim)[2] == [f"j{START}", "cancelled"]


def test_a_call_that_was_cut_off_before_its_key_is_completed_by_anybody(shard: Shard) -> None:
    """The job is there and the tick's key is not: the same job id is known, and no second job is made."""
    ask(shard, START)
    shard.redis("DEL", f"{shard.keys.tag}:{key_of(START)}", shard.keys.crons)
    finish(shard, f"j{START}")

    assert ask(shard, START, worker="w2") == ("OK", START, f"j{START}")

    shard.check(f"j{START}", status="succeeded")
    assert shard.claim() == []
    assert state_of(shard) == f"{START} j{START} 0 {MINUTELY}"
    assert key_of(START) in shard.look().strings


def test_a_tick_s_job_recovers_like_any_other(shard: Shard) -> None:
    shard.pass_hold()
    tick = shard.now
    ask(shard, tick)
    shard.claim_one()
    shard.elapse(LEASE)

    (candidate,) = shard.found_dead()

    assert candidate.job_id == f"j{tick}"


# --- a Redis that lost data -------------------------------------------------------------------------------


def told(shard: Shard, marker: str, *, tick: int | None = START) -> tuple[str, str]:
    """(verdict, the marker that stands)."""
    reply = shard.send(call(shard, tick, marker=marker))
    return reply[0].decode(), reply[-1].decode()


@pytest.mark.parametrize(("marker", "stands"), [("m1", None), ("m1", "m2"), ("m1", "m1"), ("", "m1")])
@pytest.mark.parametrize("tick", [START, None])
def test_no_tick_counts_while_a_loss_is_not_restored(
    shard: Shard, marker: str, stands: str | None, tick: int | None
) -> None:
    """A worker that knows the mirror's marker is refused by another or none, and everybody by a restoring."""
    if stands is not None:
        shard.redis("HSET", shard.keys.policies, "mirror", stands)
    if stands == "m1":
        shard.redis("HSET", shard.keys.policies, "restoring", "1")
    before = shard.look()

    assert told(shard, marker, tick=tick) == ("RESTORING", stands or "")

    assert shard.look() == before, "nor is the cron noted as new"


@pytest.mark.parametrize(("marker", "stands"), [("", "m1"), ("m1", "m1"), ("m1", "off"), ("", None)])
def test_a_worker_learns_the_marker_that_stands(shard: Shard, marker: str, stands: str | None) -> None:
    if stands is not None:
        shard.redis("HSET", shard.keys.policies, "mirror", stands)

    assert told(shard, marker) == ("OK", "m1" if stands == "m1" else "")


# --- another schedule --------------------------------------------------------------------------------------


def held(shard: Shard, schedule: str, was: str = "") -> tuple[int, str, str, str]:
    """What a worker with this schedule finds: last tick, its job, since when which schedule holds."""
    _, _, last, job_id, since, said, _ = shard.send(call(shard, None, schedule=schedule, was=was))
    return int(last), job_id.decode(), since.decode(), said.decode()


def test_a_schedule_that_takes_the_place_of_another_holds_from_then_on(shard: Shard) -> None:
    assert held(shard, MINUTELY) == (START, "-", "0", MINUTELY)
    shard.now += SECOND
    ask(shard, START + SECOND)
    shard.now += SECOND
    before = (START + SECOND, f"j{START + SECOND}")

    assert held(shard, HOURLY) == (*before, "0", MINUTELY), "asked only"
    assert held(shard, HOURLY, was="UTC 1 * * * *") == (*before, "0", MINUTELY), "it was another"
    assert held(shard, HOURLY, was=MINUTELY) == (*before, str(shard.now), HOURLY)
    shard.now += SECOND
    assert held(shard, HOURLY, was=MINUTELY) == (*before, str(shard.now - SECOND), HOURLY), "once"
    assert ask(shard, START + 2 * SECOND)[0] == "SKIPPED", "the job before it is still open"


def test_a_cron_of_before_schedules_were_kept_says_none(shard: Shard) -> None:
    shard.redis("HSET", shard.keys.crons, "sweep", f"{START - SECOND} j1")

    assert held(shard, MINUTELY) == (START - SECOND, "j1", "", "")
    assert ask(shard, START) == ("OK", START, f"j{START}")
    assert held(shard, MINUTELY) == (START, f"j{START}", "0", MINUTELY)


# --- recall: what the durable record knows of ticks --------------------------------------------------------


@pytest.mark.parametrize(
    ("stands", "becomes"),
    [
        (None, f"{START} j1 "),
        (f"{START + SECOND} - 0 {MINUTELY}", f"{START} j1 0 {MINUTELY}"),
        (f"{START - SECOND} j0 7 {MINUTELY}", f"{START} j1 7 {MINUTELY}"),
        (f"{START - SECOND} j0", f"{START} j1 "),
        (f"{START} j1 0 {MINUTELY}", None),
        (f"{START + SECOND} j2 0 {MINUTELY}", None),
    ],
)
def test_a_cron_that_forgot_its_last_tick_is_told(
    shard: Shard, stands: str | None, becomes: str | None
) -> None:
    if stands is not None:
        shard.redis("HSET", shard.keys.crons, "sweep", stands)

    told = shard.send(scripts.recall(rows=["sweep", START, "j1"]))

    assert told == (becomes is not None)
    assert state_of(shard) == (becomes or stands)
    shard.now = START + SECOND
    assert ask(shard, START)[0] == "ALREADY", "it does not run again"


# --- a tick that waits in the backlog ----------------------------------------------------------------------


@pytest.mark.parametrize(("overlap", "verdict"), [("skip", "SKIPPED"), ("queue", "OK"), ("replace", "OK")])
def test_a_tick_that_waits_in_the_backlog_is_open(shard: Shard, overlap: str, verdict: str) -> None:
    shard.declare(drain="10,1000,9")

    def deferred(tick: int) -> str:
        row = job(f"j{tick}", task="sweep", backlog="rule").row()
        one = call(shard, tick, overlap=overlap)
        return str(shard.send(scripts.Call(one.script, (*one.argv[:-5], *row)))[0].decode())

    assert deferred(START) == "OK"
    shard.check(f"j{START}", status="queued", place="b")
    shard.now += SECOND

    assert deferred(START + SECOND) == verdict

    first = "failed_terminal" if overlap == "replace" else "queued"
    assert shard.record(f"j{START}").status == first
    shard.send(shard.drain_call())
    ran = [claim.job_id for claim in shard.claim()]
    first_and_second = [f"j{START}", f"j{START + SECOND}"]
    assert ran == {"skip": first_and_second[:1], "queue": first_and_second}.get(overlap, first_and_second[1:])
