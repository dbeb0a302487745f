"""What makes a job ordinary, so that it is moved as a text, and what must not be taken for it.

That both ways leave the same is the matter of test_ordinary_histories.py.
"""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Release, Success
from streamworker.core.states import Reason
from streamworker.store import events, settle_rows
from tests.lua.driver import Shard, job, plan_of

SUCCESS = Success(b"7")


def twin(shard: Shard, job_id: str, lane: str = "normal", entry: str = "*") -> str:
    """A second entry of a job."""
    shard.tampered.add(job_id)
    found: bytes = shard.redis(
        "XADD", shard.keys.stream(lane), entry, "id", job_id, "env", f"env of {job_id}"
    )
    return found.decode()


def remake_group(shard: Shard) -> None:
    """All that stands in the lane is delivered again."""
    shard.redis("XGROUP", "DESTROY", shard.keys.stream("normal"), "workers")


def lines_of(shard: Shard) -> list[bytes]:
    """What the newest entry of the log says, a line for each job."""
    return list(shard.look().streams["events"].values())[-1][b"e"].splitlines()


# --- the same job twice in a call --------------------------------------------------------------------------


def test_a_job_that_is_settled_twice_in_a_call_ends_once(shard: Shard) -> None:
    claim = shard.take("j")
    row = settle_rows.outcome_row(claim, SUCCESS, 5)

    assert shard.settle_rows(row, row) == ["OK", "ALREADY succeeded"]

    assert shard.edges("j")[2:] == ["claimed>processing", "processing>succeeded"]
    assert shard.stats()["in_flight:normal"] == 0


def test_a_job_that_succeeded_can_do_nothing_else_in_the_same_call(shard: Shard) -> None:
    claim = shard.take("j")
    rows = [settle_rows.outcome_row(claim, outcome, 5) for outcome in (SUCCESS, Release(Reason.SHUTDOWN))]

    assert shard.settle_rows(*rows, settle_rows.mark_row(claim, 9)) == ["OK", *["ALREADY succeeded"] * 2]

    shard.check("j", status="succeeded", attempt=1)


def test_a_job_whose_start_is_told_in_the_same_call_has_started_then(shard: Shard) -> None:
    claim = shard.take("j")

    shard.settle_rows(settle_rows.mark_row(claim, 30), settle_rows.outcome_row(claim, SUCCESS, 5))

    assert [(line.target, line.offset_ms) for line in shard.history("j")[2:]] == [
        ("processing", -30),
        ("succeeded", 0),
    ]


def test_a_job_that_is_claimed_and_found_again_in_a_call_is_claimed_once(shard: Shard) -> None:
    shard.put("j")
    shard.put("k")
    shard.session()
    shard.redis("XGROUP", "CREATE", shard.keys.stream("normal"), "workers", "0")
    (offer,) = shard.deliver("w1", count=1)
    remake_group(shard)

    claims = shard.claim(offers=[offer])

    assert [claim.job_id for claim in claims] == ["j", "k"]
    shard.check("j", status="claimed", attempt=1, starts=1, owner="w1")


def test_a_second_entry_of_a_job_that_is_claimed_in_the_same_call_is_removed(shard: Shard) -> None:
    shard.put("j")
    stray = twin(shard, "j")

    (claim,) = shard.claim()

    assert claim.job_id == "j"
    assert list(shard.look().streams["lane:normal"]) == [claim.entry] != [stray]
    assert shard.stats()["claims:conflict"] == 1


def test_a_second_entry_of_a_job_that_ends_in_the_same_call_is_removed(shard: Shard) -> None:
    claim = shard.take("j")
    twin(shard, "j")

    verdict, claims, replies = shard.exchange(settle_rows.outcome_row(claim, SUCCESS, 5), limit=2)

    assert (verdict, claims, replies) == ("OK normal=final=1", [], ["OK"])
    assert shard.look().streams["lane:normal"] == {}
    shard.check("j", status="succeeded")


# --- what is not ordinary ----------------------------------------------------------------------------------


def test_an_entry_that_the_record_does_not_name_is_no_claim(shard: Shard) -> None:
    shard.put("j")
    twin(shard, "j")
    shard.delete_entry("j")

    assert shard.claim() == []

    shard.check("j", status="queued", attempt=0)
    assert shard.stats()["claims:conflict"] == 1


def test_an_entry_of_another_lane_is_no_claim(shard: Shard) -> None:
    """Of a lane with a name of the same length, in case that only the rest is looked at."""
    shard.put("j", lane="north")
    twin(shard, "j", "south", shard.record("j").fields["en"].partition(":")[2])

    assert shard.claim(plan=plan_of("south")) == []

    shard.check("j", status="queued", attempt=0)


def test_an_entry_of_another_stream_with_the_same_id_is_no_claim(shard: Shard) -> None:
    shard.put("j")
    shard.tampered.add("j")
    entry = shard.record("j").fields["en"].partition(":")[2]
    shard.redis("XADD", shard.keys.stream("normal", "r"), entry, "id", "j", "env", "x")

    (claim,) = shard.claim()

    assert (claim.kind, claim.envelope) == ("a", b"env of j")
    assert shard.stats()["claims:conflict"] == 1


@pytest.mark.parametrize(
    "special",
    [
        {"deadline_ms": 700},
        {"deadline_ms": 700, "key_id": "add::k", "fingerprint": "f"},
    ],
    ids=["alone", "with a key"],
)
def test_a_claim_tells_the_deadline(shard: Shard, special: dict[str, object]) -> None:
    shard.put("j", **special)

    assert shard.claim_one().deadline_in_ms == 700


def test_a_job_of_a_task_that_is_paused_waits(shard: Shard) -> None:
    shard.tune("pause", "task:add")
    shard.put("j")

    assert shard.claim() == []

    shard.check("j", status="queued", place="pause:task:add")


def test_a_job_that_ends_under_another_fence_is_somebody_elses(shard: Shard) -> None:
    claim = shard.take("j")
    head, *rest = settle_rows.outcome_row(claim, SUCCESS, 5)

    (reply,) = shard.settle_rows((str(head).replace(str(claim.fence), str(claim.fence + 1)), *rest))

    assert reply == "STALE"
    shard.check("j", status="claimed")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ("2 1 0 2 0", (2, 1, 0, 4, 0)),
        ("1 2 0 2 0", (1, 2, 0, 4, 0)),
        ("1 1 1 2 0", (1, 1, 0, 4, 0)),
        ("1 1 0 7 0", (1, 1, 0, 9, 0)),
        ("1 1 0 2 3", (1, 1, 0, 4, 3)),
    ],
    ids=["attempt", "starts", "strikes", "version", "epoch"],
)
def test_a_job_with_other_numbers_keeps_them(shard: Shard, counts: str, expected: tuple[int, ...]) -> None:
    claim = shard.take("j")
    key = shard.keys.job("j")
    raw: bytes = shard.redis("GET", key)
    shard.redis("SET", key, raw.replace(b"claimed 1 1 0 2 0", f"claimed {counts}".encode()))
    shard.watchful = False  # the log does not know of it

    assert shard.settle(claim, SUCCESS) == "OK"

    record = shard.record("j")
    assert (record.attempt, record.starts, record.strikes, record.version, record.epoch) == expected


def test_a_job_of_another_stream_leaves_that(shard: Shard) -> None:
    """Handed back before it was ever claimed: the numbers of a first claim, and not out of arrivals."""
    shard.take("other")
    shard.put("j")
    (offer,) = shard.deliver("w1")
    shard.claim(limit=0, offers=[offer])
    claim = shard.claim_one()
    assert (claim.kind, claim.attempt, claim.starts) == ("r", 1, 1)

    assert shard.settle(claim, SUCCESS) == "OK"

    assert shard.look().streams["lane:normal:ready"] == {}
    assert shard.look().pending["lane:normal:ready"] == {}


def test_who_waits_for_the_result_is_woken(shard: Shard) -> None:
    claim = shard.take("j")
    shard.watch("j", wait=1)

    shard.settle(claim, SUCCESS)

    assert shard.look().lists["done:j"] == [b"succeeded"]


# --- what is written ---------------------------------------------------------------------------------------


def test_a_claim_after_one_with_other_numbers_has_a_line_of_its_own(shard: Shard) -> None:
    shard.put("back")
    shard.settle(shard.claim_one(), Release(Reason.SHUTDOWN))
    shard.put("j")

    first, second = shard.claim()

    assert (first.job_id, first.starts) == ("back", 2)
    assert lines_of(shard)[1].split()[:7] == [b"j", b"queued", b"claimed", b"1", b"1", b"0", b"2"]
    assert second.job_id == "j"


def test_a_success_after_one_with_other_numbers_has_a_line_of_its_own(shard: Shard) -> None:
    shard.put("back")
    shard.settle(shard.claim_one(), Release(Reason.SHUTDOWN))
    shard.put("j")
    rows = [settle_rows.outcome_row(claim, SUCCESS, 5) for claim in shard.claim()]

    shard.settle_rows(*rows)

    assert lines_of(shard)[1].split()[:7] == [b"j", b"claimed", b"succeeded", b"1", b"1", b"0", b"4"]


def test_a_mirror_is_told_the_result_with_its_line(shard: Shard) -> None:
    shard.enqueue(job("a"), job("b"))
    shard.redis("HSET", shard.keys.policies, "mirror", "m1")
    rows = [settle_rows.outcome_row(claim, Success(claim.job_id.encode()), 5) for claim in shard.claim()]

    shard.settle_rows(*rows)

    newest = list(shard.look().streams["events"].values())[-1]
    assert events.parts(newest) == {1: {"r": b"a"}, 2: {"r": b"b"}}


def test_a_key_is_carried_along_and_ends_with_its_job(shard: Shard) -> None:
    claim = shard.take("j", key_id="add::k", fingerprint="f", window_ms=5000)
    shard.check("j", status="claimed", key="open")

    shard.settle(claim, SUCCESS)

    shard.check("j", status="succeeded", key="succeeded")
    assert 0 < shard.look().ttls["key:add::k"] <= 5000


@pytest.mark.parametrize("count", [1, 500, 501])
def test_calls_of_any_length_leave_the_same(valkey_shard: Shard, count: int) -> None:
    """One job, as many as are read at once, and more than that, which are read one by one."""
    shard = valkey_shard
    shard.enqueue(*(job(f"j{number}") for number in range(count)))

    claims = shard.claim(limit=count, plan=plan_of(("normal", 0, count, 0)))
    assert len(claims) == count
    assert shard.stats()["in_flight:normal"] == count
    rows = [settle_rows.outcome_row(claim, SUCCESS, 5) for claim in claims]
    assert set(shard.settle_rows(*rows)) == {"OK"}

    record = shard.record(f"j{count - 1}")
    assert (record.status, record.version, record.text("re")) == ("succeeded", 4, "7")
    assert shard.stats()["in_flight:normal"] == 0
    assert shard.look().streams["lane:normal"] == {}


# --- new jobs ----------------------------------------------------------------------------------------------


def test_jobs_of_several_tasks_and_lanes_are_told_and_counted_apart(shard: Shard) -> None:
    rows = [("a", "normal", "add"), ("b", "normal", "add"), ("c", "normal", "pack"), ("d", "other", "pack")]

    shard.enqueue(*(job(name, lane=lane, task=task) for name, lane, task in rows))

    assert lines_of(shard) == [b"a + add normal", b"b +", b"c + pack normal", b"d + pack other"]
    stats = shard.stats()
    assert (stats["queued:normal"], stats["queued:other"]) == (3, 1)
    assert (stats["enqueued:normal:add"], stats["enqueued:normal:pack"], stats["enqueued:other:pack"]) == (
        2,
        1,
        1,
    )
    assert [claim.envelope for claim in shard.claim(plan=plan_of("other"))] == [b"env of d"]


def test_a_job_that_is_sent_twice_in_a_call_is_one(shard: Shard) -> None:
    assert shard.enqueue(job("a"), job("b"), job("a")) == ["ACCEPTED"] * 3

    assert len(shard.look().streams["lane:normal"]) == 2
    assert shard.stats()["queued:normal"] == 2


@pytest.mark.parametrize("others", [0, 1])
def test_a_job_that_is_there_is_not_enqueued_again(shard: Shard, others: int) -> None:
    claim = shard.take("j")

    assert set(shard.enqueue(job("j"), *(job(f"k{n}") for n in range(others)))) == {"ACCEPTED"}

    shard.check("j", status="claimed")
    assert len(shard.look().streams["lane:normal"]) == 1 + others
    assert shard.settle(claim, SUCCESS) == "OK"


def test_a_call_with_one_special_job_does_right_by_all(shard: Shard) -> None:
    assert shard.enqueue(job("a"), job("b", delay_ms=500), job("c")) == [
        "ACCEPTED",
        f"SCHEDULED {shard.now + 500}",
        "ACCEPTED",
    ]

    assert [claim.job_id for claim in shard.claim()] == ["a", "c"]


def test_a_lane_that_is_full_takes_no_ordinary_job_either(shard: Shard) -> None:
    shard.declare(admission="depth normal 1 reject")

    replies = shard.enqueue(job("a"), job("b"))

    assert [reply.split(" ")[0] for reply in replies] == ["ACCEPTED", "REJECTED"]


def test_a_throttle_holds_for_ordinary_jobs(shard: Shard) -> None:
    shard.tune("throttle", "lane:normal", "1,1000,1 reject")

    replies = shard.enqueue(job("a"), job("b"))

    assert [reply.split(" ")[0] for reply in replies] == ["ACCEPTED", "REJECTED"]


@pytest.mark.parametrize("declared", ["", "depth other 5 reject"])
def test_bounds_of_nobody_and_of_others_change_nothing(shard: Shard, declared: str) -> None:
    shard.declare(admission=declared)

    assert shard.enqueue(job("a"), job("b")) == ["ACCEPTED", "ACCEPTED"]


def test_a_log_that_is_full_takes_no_ordinary_job(shard: Shard) -> None:
    words = ("mirror", "m1", "mirror_bound", "80")
    shard.redis("HSET", shard.keys.policies, *words)
    shard.enqueue(job("a"), job("b"))

    assert shard.enqueue(job("c"), job("a"))[:2] == ["REJECTED 1000 log_full", "ACCEPTED"]
    assert shard.enqueue(job("d"))[0] == "REJECTED 1000 log_full"


def test_a_mirror_is_told_the_envelope_of_each(shard: Shard) -> None:
    shard.redis("HSET", shard.keys.policies, "mirror", "m1")

    assert shard.enqueue(job("a"), job("b")) == ["ACCEPTED", "ACCEPTED", "MARKER m1"]

    newest = list(shard.look().streams["events"].values())[-1]
    assert events.parts(newest) == {1: {"p": b"env of a"}, 2: {"p": b"env of b"}}
