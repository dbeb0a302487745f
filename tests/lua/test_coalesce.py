"""coalesce: the events of a window become one job, and each key leads to it."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Fail, Retry, Success
from streamworker.core.states import ErrorClass
from streamworker.store import scripts
from streamworker.store.connection import ReplyError
from tests.lua.driver import RETENTION, Shard, job
from tests.lua.merging import WINDOW, body, due, event, items_of, run_windows
from tests.lua.test_interrupted import cut_off

FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")


def test_what_comes_within_a_window_is_one_job(shard: Shard) -> None:
    opened = due(shard)
    assert shard.coalesce(event("a")) == [opened]
    shard.elapse(WINDOW - 1)
    assert shard.coalesce(event("b"), event("c")) == ["COALESCED a"] * 2

    shard.elapse(1)
    shard.promote()

    (claim,) = shard.claim()
    assert (claim.job_id, items_of(claim.envelope)) == ("a", ["a", "b", "c"])
    assert shard.stats()["coalesced:normal:add"] == 2
    assert set(shard.look().records()) == {"a"}


def test_the_next_window_opens_when_one_is_over_even_if_nobody_has_looked(shard: Shard) -> None:
    shard.coalesce(event("a"))
    shard.elapse(WINDOW)

    assert shard.coalesce(event("b")) == [due(shard)]


def test_each_item_is_taken_once(shard: Shard) -> None:
    shard.coalesce(event("a", "collect", 1, {"x": 1, "y": 2}), event("b", "collect", {"y": 2, "x": 1}, "1"))
    shard.coalesce(event("c", "collect", 1, "1", "x" * 100), event("d", "collect", "x" * 100, 11, 11))

    assert run_windows(shard) == {"a": [1, {"x": 1, "y": 2}, "1", "x" * 100, 11]}


def test_an_item_that_one_event_has_twice_is_taken_once(shard: Shard) -> None:
    shard.coalesce(event("a", "collect", 1, 2, 1))

    assert run_windows(shard) == {"a": [1, 2]}


def test_items_of_one_call_are_taken_once(shard: Shard) -> None:
    shard.coalesce(event("a", "collect", 1), event("b", "collect", 2), event("c", "collect", 2))

    assert run_windows(shard) == {"a": [1, 2]}


def test_text_that_looks_like_the_end_of_an_envelope_is_opaque(shard: Shard) -> None:
    shard.coalesce(event("a", "collect", "]}}", ',"'))
    shard.coalesce(event("b", "collect", "[1]}},", "é\n"))

    assert run_windows(shard) == {"a": ["]}}", ',"', "[1]}},", "é\n"]}


def test_a_thousand_events_in_one_window(shard: Shard) -> None:
    shard.watchful = False
    names = [f"e{i:04}" for i in range(1_000)]
    replies = []
    for start in range(0, 1_000, 250):
        replies += shard.coalesce(
            *(event(name, key_id=f"add::{name}", fingerprint="f") for name in names[start : start + 250])
        )

    assert replies == [due(shard), *["COALESCED e0000"] * 999]
    (claim,) = shard.claim(limit=10)
    assert items_of(claim.envelope) == names, "a window that is full does not wait"
    shard.settle(claim, Success())
    now = shard.look()
    assert [now.strings[f"key:add::{name}"] for name in names] == [b"e0000 f succeeded"] * 1_000
    assert all(now.ttls[f"key:add::{name}"] > 0 for name in names)


def test_a_window_that_is_full_ends_early_and_the_next_one_opens(shard: Shard) -> None:
    replies = shard.coalesce(*(event(f"e{i}", limit=3) for i in range(7)))

    opened = due(shard)
    assert replies == [opened, *["COALESCED e0"] * 2, opened, *["COALESCED e3"] * 2, opened]
    assert {one.job_id: items_of(one.envelope) for one in shard.claim()} == {
        "e0": ["e0", "e1", "e2"],
        "e3": ["e3", "e4", "e5"],
    }
    shard.check("e6", place="schedule")


def test_a_window_of_earlier_calls_that_is_full_ends_early_too(shard: Shard) -> None:
    shard.coalesce(event("a", limit=3))
    shard.coalesce(event("b", limit=3))

    assert shard.coalesce(event("c", limit=3)) == ["COALESCED a"]

    assert [items_of(one.envelope) for one in shard.claim()] == [["a", "b", "c"]]


def test_an_event_for_which_there_is_no_room_opens_the_next_window(shard: Shard) -> None:
    shard.coalesce(event("a", "collect", 1, 2, limit=3))

    assert shard.coalesce(event("b", "collect", 3, 4, limit=3)) == [due(shard)]

    assert [items_of(one.envelope) for one in shard.claim()] == [[1, 2]]
    assert run_windows(shard) == {"b": [3, 4]}


def test_a_window_of_a_clock_that_was_ahead_ends_with_the_next_event(shard: Shard) -> None:
    """It was open for an hour after the clock was put right, and what came meanwhile waited with it."""
    shard.coalesce(event("a"))
    shard.now -= 3_600_000

    assert shard.coalesce(event("b")) == [due(shard)]

    assert [items_of(one.envelope) for one in shard.claim()] == [["a"]]
    assert run_windows(shard) == {"b": ["b"]}


def test_an_event_that_is_a_window_by_itself_does_not_wait(shard: Shard) -> None:
    assert shard.coalesce(event("a", "collect", 1, 2, 3, limit=3)) == ["ACCEPTED"]


def test_no_envelope_gets_larger_than_its_lane_allows(shard: Shard) -> None:
    shard.coalesce(event("a", "collect", "x" * 100, bytes_most=300))
    shard.coalesce(event("b", "collect", "y" * 100, bytes_most=300))

    assert shard.coalesce(event("c", "collect", "z" * 100, bytes_most=300)) == [due(shard)]


def test_the_latest_event_wins(shard: Shard) -> None:
    shard.coalesce(event("a", "latest", 1), event("b", "latest", 2))
    assert shard.coalesce(event("c", "latest", 3)) == ["COALESCED a"]

    assert run_windows(shard) == {"a": [3]}


def test_an_older_event_that_is_sent_again_does_not_win(shard: Shard) -> None:
    shard.coalesce(event("a", "latest", 1))
    shard.coalesce(event("b", "latest", 2))
    shard.coalesce(event("c", "latest", 3))

    assert shard.coalesce(event("b", "latest", 2)) == ["COALESCED a"]

    assert run_windows(shard) == {"a": [3]}


def test_what_was_merged_and_is_sent_again_after_the_window_is_known(shard: Shard) -> None:
    shard.coalesce(event("a"), event("b"))
    run_windows(shard)

    assert shard.coalesce(event("b")) == ["COALESCED a"]
    assert 0 < shard.look().ttls["merged:b"] <= 60_000


@pytest.mark.parametrize("other", [{"user": 8}, {"lane": "bulk"}, {"tenant": "acme"}])
def test_what_does_not_belong_together_is_not_merged(shard: Shard, other: dict[str, object]) -> None:
    assert shard.coalesce(event("a"), event("b", **other)) == [due(shard)] * 2  # type: ignore[arg-type]


def test_plain_jobs_of_the_same_call_stay_apart(shard: Shard) -> None:
    replies = shard.coalesce(event("a"), job("plain"), event("b"))

    assert replies == [due(shard), "ACCEPTED", "COALESCED a"]


def test_a_key_leads_to_the_job_that_its_event_went_into(shard: Shard) -> None:
    shard.coalesce(event("a"), event("b", key_id="add::k", fingerprint="f"))

    again = event("c", key_id="add::k", fingerprint="f")
    assert shard.coalesce(again) == ["DUPLICATE a queued"]
    assert shard.coalesce(event("d", key_id="add::k", fingerprint="g")) == ["CONFLICT a queued"]

    shard.elapse(WINDOW)
    shard.promote()
    shard.settle(shard.claim_one(), Success())
    assert shard.coalesce(again) == ["DUPLICATE a succeeded"]
    now = shard.look()
    assert now.ttls["key:add::k"] > 0
    assert "merged_keys:a" not in now.hashes


def test_the_keys_of_a_merged_job_that_fails_are_free(shard: Shard) -> None:
    shard.coalesce(
        event("a", key_id="add::ka", fingerprint="f"), event("b", key_id="add::kb", fingerprint="f")
    )
    shard.elapse(WINDOW)
    shard.promote()

    shard.settle(shard.claim_one(), FATAL)

    now = shard.look()
    assert not [name for name in now.strings if name.startswith("key:")]
    assert "merged_keys:a" not in now.hashes


def test_a_key_that_names_another_job_by_now_is_left_alone(shard: Shard) -> None:
    shard.coalesce(event("a"), event("b", key_id="add::k", fingerprint="f"))
    shard.redis("SET", f"{shard.keys.tag}:key:add::k", "other f open")
    shard.tampered |= {"other"}
    shard.watchful = False

    shard.elapse(WINDOW)
    shard.promote()
    shard.settle(shard.claim_one(), Success())

    assert shard.look().strings["key:add::k"] == b"other f open"


def test_a_cancelled_job_takes_no_more(shard: Shard) -> None:
    shard.coalesce(event("a"))
    shard.cancel("a")

    assert shard.coalesce(event("b")) == [due(shard)]
    assert run_windows(shard) == {"b": ["b"]}


def test_a_retry_takes_no_more(shard: Shard) -> None:
    shard.coalesce(event("a"))
    shard.elapse(WINDOW)
    shard.promote()
    shard.settle(shard.claim_one(), Retry(60_000, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1"))

    assert shard.coalesce(event("b")) == [due(shard)]


def test_only_under_pressure_if_so_declared(shard: Shard) -> None:
    assert shard.coalesce(event("a", when="pressure"), event("b", when="pressure")) == ["ACCEPTED"] * 2

    shard.redis("HSET", shard.keys.policies, "pressure:normal", "high")

    assert shard.coalesce(event("c", when="pressure"), event("d", when="pressure")) == [
        due(shard),
        "COALESCED c",
    ]


def test_what_is_merged_needs_no_room_and_no_token(shard: Shard) -> None:
    shard.declare(admission="depth normal 1 reject")
    shard.tune("throttle", "lane:normal", "1,1000,1 reject")

    assert shard.coalesce(event("a"), event("b")) == [due(shard), "COALESCED a"]
    (refused,) = shard.coalesce(event("c", user=8))
    assert refused.startswith("REJECTED ")


def test_a_merged_job_passes_its_tenants_turnstile(shard: Shard) -> None:
    shard.enqueue(*(job(f"t{i}", tenant="acme") for i in range(16)))
    shard.coalesce(event("a", tenant="acme"))

    shard.elapse(WINDOW)
    shard.promote()

    shard.check("a", place="t")


def test_a_window_that_ends_early_is_let_in_from_the_backlog(shard: Shard) -> None:
    shard.coalesce(event("a", limit=2, backlog="asked"))
    shard.coalesce(event("b", limit=2, backlog="asked"))

    shard.check("a", place="b")


def test_the_history_tells_of_each_merge(shard: Shard) -> None:
    shard.coalesce(event("a"), event("b"))
    shard.coalesce(event("c"), event("d"))

    first, merged = shard.history("a")
    assert (first.reason, merged.reason, merged.details) == ("delayed", "merged", {"events": "2"})
    assert body(shard, "a")["a"]["items"] == ["a", "b", "c", "d"]


def test_a_mirror_gets_the_envelope_of_each_merge(shard: Shard) -> None:
    shard.redis("HSET", shard.keys.policies, "mirror", "m1")
    shard.coalesce(event("a"))
    shard.coalesce(event("b"))

    *_, last = shard.look().streams["events"].values()
    assert items_of(last[b"p1"]) == ["a", "b"]


def test_what_a_window_needs_does_not_stay(shard: Shard) -> None:
    shard.coalesce(event("a"), event("b"))

    ttls = shard.look().ttls
    assert 0 < ttls["collected:a"] <= WINDOW
    assert all(0 < ttl <= WINDOW for name, ttl in ttls.items() if name.startswith("window:"))
    assert RETENTION > WINDOW


@pytest.mark.parametrize("limit", [1_000, 3])
def test_no_item_is_lost_when_a_call_is_cut_off_anywhere(valkey_shard: Shard, limit: int) -> None:
    names = {f"e{i}" for i in range(4)}
    for allowed in range(100):
        shard = Shard(
            valkey_shard.link, f"{valkey_shard.keys.namespace}-{allowed}", folder=valkey_shard.folder
        )
        shard.watchful = False
        shard.coalesce(event("e0", limit=limit))
        rows = [word for name in sorted(names - {"e0"}) for word in event(name, limit=limit).row()]
        call = scripts.coalesce(clock=shard.clock, rows=rows)
        try:
            shard.link.script(cut_off(shard.script(call.script)), shard.keys.tag, *call.argv, allowed)
            shard.clear()
            return
        except ReplyError:
            shard.send(call)
        worked_on = set[str]()
        for _ in range(2):
            worked_on |= {item for items in run_windows(shard).values() for item in items}
        assert worked_on == names, f"after {allowed} writes"
        shard.clear()
    raise AssertionError("the script never came to its end")
