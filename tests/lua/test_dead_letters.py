"""replay and discard: an operator's word on a dead letter, named by its entry and epoch (D23, D11)."""

from __future__ import annotations

from typing import Any

import pytest

from streamworker.core.outcome import Fail, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import settle_rows
from tests.lua.driver import LEASE, START, Shard, job, plan_of

FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")
RETRY = Retry(0, ErrorClass.TRANSIENT, "timeout", "Timeout: x")
LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "the worker died", "-", Reason.RECOVERED)
KEYED: dict[str, Any] = {"key_id": "add::k", "fingerprint": "f"}


def dead(shard: Shard, job_id: str = "j", **options: Any) -> str:
    """A dead letter's entry id."""
    shard.settle(shard.take(job_id, **options), FATAL)
    return shard.letter(job_id)


def test_a_replay_begins_a_new_epoch_with_everything_reset(shard: Shard) -> None:
    shard.pass_hold()
    claim = shard.take("j", deadline_ms=10 * LEASE, **KEYED)
    shard.start(claim)
    shard.elapse(LEASE)
    (candidate,) = shard.found_dead()
    shard.recovery(candidate, LOST)
    claim = shard.claim_one(plan=plan_of(("normal", 1, 0, "q")))
    shard.settle(claim, FATAL, ago=None)
    shard.check("j", strikes=1, starts=2, attempt=2, epoch=0, key=None)
    letter = shard.letter("j")

    assert shard.replay(letter) == ["OK"]

    shard.check("j", status="queued", place="r", epoch=1, attempt=0, starts=0, strikes=0, held=False,
                flag=None, error=None, dead=None, key="open")  # fmt: skip
    record = shard.record("j")
    for field in ("dl", "sd", "fi", "sa", "dq"):
        assert record.text(field) is None
    assert shard.look().body("j") == {}
    line = shard.history("j")[-1]
    assert (line.epoch, line.reason, line.actor) == (1, "replayed", "operator")
    again = shard.claim_one()
    assert (again.epoch, again.attempt, again.starts, again.envelope) == (1, 1, 1, b"env of j")
    assert again.deadline_in_ms is None


def test_a_replay_forgets_a_cancel_flag(shard: Shard) -> None:
    claim = shard.take("j")
    shard.rewrite("j", cx="expired")
    shard.settle(claim, RETRY)
    shard.check("j", dead="expired", flag="expired")

    shard.replay(shard.letter("j"))

    shard.check("j", flag=None)
    assert shard.settle(shard.claim_one(), RETRY) == "OK"
    shard.check("j", status="retry_scheduled")


def test_a_second_replay_changes_nothing(shard: Shard) -> None:
    letter = dead(shard)
    named = shard.named(letter)
    shard.replay(letter)
    before = shard.look()

    assert shard.replay_named(*named) == ["ALREADY"]
    assert shard.replay_named(*named, *named) == ["ALREADY", "ALREADY"]

    assert shard.look().without_times() == before.without_times()


def test_a_letter_named_twice_in_one_call_is_replayed_once(shard: Shard) -> None:
    letter = dead(shard)

    assert shard.replay(letter, letter) == ["OK", "ALREADY"]

    shard.check("j", epoch=1)


def test_a_replay_of_another_epoch_changes_nothing(shard: Shard) -> None:
    first = shard.named(dead(shard))
    shard.replay_named(*first)
    shard.settle(shard.claim_one(), FATAL)
    letter = shard.letter("j")
    before = shard.look()

    assert shard.replay_named(*first) == ["ALREADY"]
    assert shard.replay_named(letter, "j", "0") == ["ALREADY"]
    assert shard.replay_named(letter, "other", "1") == ["GONE"]

    assert shard.look().without_times() == before.without_times()
    assert shard.replay_named(letter, "j", "1") == ["OK"]


def test_a_letter_of_an_older_epoch_cannot_revive_a_job_that_runs(shard: Shard) -> None:
    letter = dead(shard)
    shard.replay(letter)
    stray = shard.redis("XADD", shard.keys.dlq, "*", "id", "j", "epoch", "0", "task", "add", "lane", "normal",
                        "env", "x").decode()  # fmt: skip
    claim = shard.claim_one()

    assert shard.replay_named(stray, "j", "0") == ["ALREADY"]

    assert shard.record("j").status == "claimed"
    assert shard.settle(claim, Success()) == "OK"


def test_an_old_letter_cannot_revive_a_job_that_died_again(shard: Shard) -> None:
    shard.replay(dead(shard))
    shard.settle(shard.claim_one(), FATAL)
    stray = shard.redis("XADD", shard.keys.dlq, "*", "id", "j", "epoch", "0", "task", "add", "lane", "normal",
                        "env", "x").decode()  # fmt: skip

    assert shard.replay_named(stray, "j", "0") == ["ALREADY"]

    assert shard.record("j").epoch == 1
    assert shard.record("j").status == "failed_terminal"


def test_a_job_without_dead_letter_and_record_is_gone(shard: Shard) -> None:
    assert shard.replay_named("1-1", "unknown", "0") == ["GONE"]


def test_a_replay_after_the_record_expired_works_from_the_dead_letter(shard: Shard) -> None:
    letter = dead(shard, tenant="acme", max_starts=7, window_ms=5_000, **KEYED)
    version = shard.record("j").version
    shard.forget_record("j")

    assert shard.replay(letter) == ["OK"]

    shard.check("j", status="queued", place="r", epoch=1, attempt=0, key="open")
    record = shard.record("j")
    assert record.version == version + 1
    assert {name: record.fields[name] for name in ("ta", "la", "at", "tn", "ms", "ky", "kf", "kw")} == {
        "ta": "add", "la": "normal", "at": str(START), "tn": "acme", "ms": "7", "ky": "add::k", "kf": "f",
        "kw": "5000",
    }  # fmt: skip
    claim = shard.claim_one()
    assert claim.envelope == b"env of j"
    assert shard.settle(claim, Success()) == "OK"
    assert 0 < shard.look().ttls["key:add::k"] <= 5_000


def test_a_replay_names_the_epoch_also_when_the_record_expired(shard: Shard) -> None:
    shard.replay(dead(shard))
    shard.settle(shard.claim_one(), FATAL)
    letter = shard.letter("j")
    shard.forget_record("j")

    assert shard.replay_named(letter, "j", "0") == ["ALREADY"]
    assert shard.replay_named(letter, "j", "1") == ["OK"]


def test_a_replay_of_an_unreadable_record_works_once_that_has_expired(shard: Shard) -> None:
    shard.put("j", tenant="acme", **KEYED)
    shard.tampered.add("j")
    shard.damage("j")
    shard.claim()
    letter = shard.letter("j")
    assert shard.replay(letter) == ["ALREADY"]
    shard.forget_record("j")

    assert shard.replay(letter) == ["GONE"], "nobody says which task it is"

    assert shard.replay_named(letter, "j", "0", task="add") == ["OK"]

    shard.check("j", status="queued", place="r", epoch=1, key="open")
    assert (shard.record("j").text("tn"), shard.record("j").task) == ("acme", "add")
    assert shard.claim_one().envelope == b"env of j"


def test_a_letter_without_envelope_cannot_be_replayed(shard: Shard) -> None:
    shard.put("j")
    shard.delete_entry("j")
    shard.repair("j")
    shard.check("j", dead="entry_deleted")

    assert shard.replay(shard.letter("j")) == ["GONE"]

    shard.check("j", status="failed_terminal", dead="entry_deleted")


def test_a_key_that_somebody_else_has_by_now_is_not_taken(shard: Shard) -> None:
    letter = dead(shard, **KEYED)
    shard.put("next", **KEYED)
    before = shard.look()

    assert shard.replay(letter) == ["KEY_TAKEN next"]

    assert shard.look().without_times() == before.without_times()
    shard.settle(shard.claim_one(), Success())
    assert shard.replay(letter) == ["KEY_TAKEN next"], "its window is not over"


def test_an_open_key_whose_job_is_gone_is_taken(shard: Shard) -> None:
    letter = dead(shard, **KEYED)
    shard.put("lost", delay_ms=1000, **KEYED)
    shard.tampered.add("lost")
    shard.redis("ZREM", shard.keys.schedule, "lost")
    shard.forget_record("lost")

    assert shard.replay(letter) == ["OK"]

    shard.check("j", status="queued", key="open")


def test_of_two_letters_with_one_key_the_first_gets_it(shard: Shard) -> None:
    first = dead(shard, "a", **KEYED)
    second = dead(shard, "b", **KEYED)

    assert shard.replay(first, second) == ["OK", "KEY_TAKEN a"]

    shard.check("b", status="failed_terminal", dead="bad")


def test_a_replayed_job_can_die_and_be_replayed_again(shard: Shard) -> None:
    letter = dead(shard, **KEYED)
    for epoch in (1, 2):
        assert shard.replay(letter) == ["OK"]
        shard.settle(shard.claim_one(), FATAL)
        shard.check("j", status="failed_terminal", epoch=epoch, dead="bad", key=None)
        letter = shard.letter("j")


def test_a_stale_claim_of_the_last_epoch_is_refused_after_a_replay(shard: Shard) -> None:
    claim = shard.take("j")
    shard.settle(claim, FATAL)
    shard.replay(shard.letter("j"))
    current = shard.claim_one()

    assert shard.settle(claim, Success()) == "STALE"
    assert shard.settle(current, Release(Reason.SHUTDOWN)) == "OK"


# --- discard ----------------------------------------------------------------------------------------------


def test_a_discarded_letter_leaves_the_queue_and_the_log_keeps_the_decision(shard: Shard) -> None:
    letter = dead(shard)
    version = shard.record("j").version

    assert shard.discard(letter) == ["OK"]

    shard.check("j", status="failed_terminal", error="persistent discarded", dead=None, epoch=0)
    assert shard.record("j").version == version
    assert shard.record("j").text("dq") is None
    last = list(shard.look().streams["events"].values())[-1]
    assert (last[b"s"], last[b"w"], last[b"a"]) == (b"discard", b"operator", b"j 0 discarded")


def test_a_discarded_letter_is_gone_for_every_later_word(shard: Shard) -> None:
    named = shard.named(dead(shard))
    shard.discard_named(*named)
    before = shard.look()

    assert shard.discard_named(*named) == ["ALREADY"]
    assert shard.replay_named(*named) == ["ALREADY"]

    assert shard.look().without_times() == before.without_times()


def test_a_discard_needs_no_record(shard: Shard) -> None:
    letter = dead(shard)
    shard.forget_record("j")

    assert shard.discard(letter) == ["OK"]

    assert shard.state("j") == {"status": None}


@pytest.mark.parametrize("wrong", [("other", "0"), ("j", "1")])
def test_a_discard_that_names_another_job_or_epoch_changes_nothing(
    shard: Shard, wrong: tuple[str, str]
) -> None:
    letter = dead(shard)
    before = shard.look()

    assert shard.discard_named(letter, *wrong) == ["ALREADY"]

    assert shard.look().without_times() == before.without_times()


def test_one_call_discards_each_letter_once(shard: Shard) -> None:
    first, second = dead(shard, "a"), dead(shard, "b")

    assert shard.discard(first, second, first) == ["OK", "OK", "ALREADY"]

    last = list(shard.look().streams["events"].values())[-1]
    assert last[b"a"] == b"a 0 discarded\nb 0 discarded"


def test_a_job_that_came_back_keeps_its_error_when_an_old_letter_is_discarded(shard: Shard) -> None:
    shard.replay(dead(shard))
    stray = shard.redis("XADD", shard.keys.dlq, "*", "id", "j", "epoch", "0").decode()

    assert shard.discard_named(stray, "j", "0") == ["OK"]

    shard.check("j", status="queued", epoch=1, error=None)


def test_a_job_that_died_again_keeps_its_error_when_an_old_letter_is_discarded(shard: Shard) -> None:
    shard.replay(dead(shard))
    shard.settle(shard.claim_one(), FATAL)
    stray = shard.redis("XADD", shard.keys.dlq, "*", "id", "j", "epoch", "0").decode()

    assert shard.discard_named(stray, "j", "0") == ["OK"]

    shard.check("j", status="failed_terminal", error="persistent bad", dead="bad")


def test_many_letters_are_replayed_in_one_call(shard: Shard) -> None:
    shard.enqueue(*(job(f"j{i}") for i in range(50)))
    shard.settle_rows(*(settle_rows.outcome_row(claim, FATAL, 5) for claim in shard.claim()))

    assert shard.replay(*shard.look().dead_letters()) == ["OK"] * 50

    assert shard.stats()["queued:normal"] == 50
