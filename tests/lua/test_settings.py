"""What operators set with a time, what holds after it, and the changes by which it is taken back."""

from __future__ import annotations

import pytest

from streamworker.store import scripts
from tests.lua.driver import RETENTION, Shard
from tests.lua.gating import fill, ids, waiters

LIMIT = "concurrency:task:add"


def field(shard: Shard, name: str) -> str | None:
    """A field of `policies`."""
    found = shard.look().hashes.get("policies", {}).get(name.encode())
    return None if found is None else found.decode()


def entry(shard: Shard, key: str) -> str | None:
    """A field of `settings`."""
    found = shard.look().hashes.get("settings", {}).get(key.encode())
    return None if found is None else found.decode()


def last_audit(shard: Shard) -> str:
    return list(shard.look().streams["events"].values())[-1][b"a"].decode()


def changes(shard: Shard) -> list[str]:
    return [line.decode() for line in shard.look().lists.get("changes", [])]


def tune(shard: Shard, *rows: str) -> list[str]:
    call = scripts.tune(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)
    return [reply.decode() for reply in shard.send(call)]


def test_a_limit_with_a_time_holds_until_then_and_its_waiters_move_after(shard: Shard) -> None:
    shard.declare(**{LIMIT: "3"})
    shard.tune("limit", LIMIT, "1;for=1000", "a hot day")
    fill(shard, *"abcd", gates=f"0 {LIMIT}|3")
    assert ids(shard.claim()) == ["a"]

    shard.elapse(999)
    shard.wake()
    assert waiters(shard, LIMIT) == ["b", "c", "d"]
    shard.elapse(1)
    for _ in range(3):
        shard.wake()

    assert waiters(shard, LIMIT) == ["d"]
    assert field(shard, f"limit:{LIMIT}") is None
    assert field(shard, "limits") is None
    assert entry(shard, f"limit {LIMIT}") is None
    log = [fields[b"a"].decode() for fields in shard.look().streams["events"].values() if b"a" in fields]
    assert f"- 0 reset {LIMIT} - its time is over" in log


def test_a_claim_at_a_gate_ends_it_too(shard: Shard) -> None:
    shard.tune("slots", "normal", "9,9;for=1000", "x")
    shard.elapse(1000)
    fill(shard, "a", gates=f"0 {LIMIT}|3")

    assert ids(shard.claim()) == ["a"]

    assert field(shard, "slots") is None
    assert "setting:slots normal" not in shard.look().zsets.get("timers", {})


@pytest.mark.parametrize(
    ("verb", "name", "lasting", "timed", "where", "text"),
    [
        ("limit", LIMIT, "5", "2", f"limit:{LIMIT}", "5"),
        ("throttle", "lane:normal", "9,1000,9 reject", "2,1000,2 backlog", "throttles", "9,1000,9 reject"),
        ("drain", "backlog", "on 9,1000,9", "off -", "drain", "on 9,1000,9"),
        ("slots", "normal", "4,2", "8,-", "slots", "slots normal 4,2"),
        ("retries", "add", "multiply=2.0", "multiply=5.0,stop=x", "retries", "retries add multiply=2.0"),
    ],
)
def test_what_was_set_for_good_holds_again(
    shard: Shard, verb: str, name: str, lasting: str, timed: str, where: str, text: str
) -> None:
    shard.tune(verb, name, lasting, "as agreed")
    before = field(shard, where)
    assert before is not None
    assert text in before
    shard.tune(verb, name, f"{timed};for=1000", "for now")
    shard.tune(verb, name, f"{timed};for=2000", "a little longer")
    assert timed in (field(shard, where) or "")

    shard.elapse(2000)
    shard.wake()

    assert field(shard, where) == before
    assert entry(shard, f"{verb} {name}") == f"0 operator {shard.now - 2000}\t{lasting}\tas agreed"
    assert last_audit(shard) == f"- 0 {verb} {name} {lasting} its time is over"


def test_one_list_holds_the_settings_of_all_names(shard: Shard) -> None:
    shard.tune("retries", "add", "multiply=2.0", "x")
    shard.tune("retries", "mail", "multiply=3.0", "y")
    shard.tune("retries", "add", "multiply=4.0", "z")

    lines = (field(shard, "retries") or "").split("\n")

    assert [line.split(" ")[1:3] for line in lines] == [["add", "multiply=4.0"], ["mail", "multiply=3.0"]]
    shard.tune("retries", "mail")
    assert (field(shard, "retries") or "").split(" ")[1] == "add"


def test_a_setting_for_good_ends_the_time_of_the_one_before(shard: Shard) -> None:
    shard.tune("slots", "normal", "9,9;for=1000", "x")
    shard.tune("slots", "normal", "8,8", "y")

    shard.elapse(1000)
    shard.wake()

    assert (field(shard, "slots") or "").startswith("slots normal 8,8 ")
    assert "setting:slots normal" not in shard.look().zsets.get("timers", {})


def test_a_time_that_was_made_longer_is_kept(shard: Shard) -> None:
    shard.tune("slots", "normal", "9,9;for=1000", "x")
    shard.tune("slots", "normal", "9,9;for=5000", "x")
    shard.redis("ZADD", shard.keys.timers, shard.now + 1000, "setting:slots normal")

    shard.elapse(1000)
    shard.wake()

    assert (field(shard, "slots") or "").startswith("slots normal 9,9 ")
    assert shard.look().zsets["timers"]["setting:slots normal"] == shard.now + 4000


def test_what_is_set_already_is_no_change(shard: Shard) -> None:
    assert shard.tune("slots", "normal", "9,9", "x") == "OK"
    assert shard.tune("slots", "normal", "9,9", "x") == "OK"
    assert shard.tune("slots", "normal") == "OK"
    assert shard.tune("slots", "normal") == "NOTHING"

    assert [line.split("\n")[0].split("\t")[2] for line in changes(shard)] == ["slots -", "slots 9,9"]


def test_a_change_says_what_stood_before(shard: Shard) -> None:
    shard.tune("limit", LIMIT, "5", "one")
    first = shard.now
    shard.elapse(1000)

    shard.tune("limit", LIMIT, "6;for=900", "two")
    shard.tune("pause", "tenant:acme", "", "three")
    shard.tune("resume", "tenant:acme", 0, "four")

    four, three, two, one = changes(shard)
    assert one == f"1 {first} operator 0\tlimit {LIMIT}\tlimit 5\tone\n"
    before = f"0 operator {first}\t5\tone"
    assert two == f"2 {shard.now} operator 0\tlimit {LIMIT}\tlimit 6;for=900\ttwo\n{before}"
    assert three == f"3 {shard.now} operator 0\tpause tenant:acme\tpause -\tthree\n"
    assert four == (
        f"4 {shard.now} operator 0\tpause tenant:acme\tresume 0\tfour\npaused 0 operator {shard.now} three"
    )


def test_rows_about_the_same_thing_are_one_change(shard: Shard) -> None:
    tune(shard, "limit", LIMIT, "5", "x", "limit", LIMIT, "6;for=900", "x")

    (only,) = changes(shard)
    assert only.endswith("\tlimit 5\tx\n"), "told as what holds for good: it can be taken back after the time"
    assert (entry(shard, f"limit {LIMIT}") or "").count("\n") == 1


def test_an_expected_change_that_is_not_the_last_stops_all(shard: Shard) -> None:
    shard.tune("limit", LIMIT, "5", "one")
    shard.tune("limit", LIMIT, "6", "two")
    before = shard.look().without_times()

    assert tune(shard, "expect", f"limit {LIMIT}", "1", "1", "reset", LIMIT, "", "back") == ["CHANGED"]

    assert shard.look().without_times() == before


def test_what_expects_a_change_and_takes_none_back_is_an_ordinary_one(shard: Shard) -> None:
    shard.tune("limit", LIMIT, "5", "one")

    assert tune(shard, "expect", f"limit {LIMIT}", "1", "0", "limit", LIMIT, "6", "two") == ["OK"]
    assert tune(shard, "expect", f"limit {LIMIT}", "1", "0", "limit", LIMIT, "7", "late") == ["CHANGED"]
    assert tune(shard, "expect", "limit rate:task:other", "0", "0", "limit", "rate:task:other", "7", "x") == [
        "OK"
    ]

    assert field(shard, f"limit:{LIMIT}") == "6"


def test_an_expected_change_is_taken_back_once(shard: Shard) -> None:
    shard.tune("limit", LIMIT, "5", "one")
    shard.tune("pause", "tenant:acme", "", "something else")
    rows = ("expect", f"limit {LIMIT}", "1", "1", "reset", LIMIT, "", "back")

    assert tune(shard, *rows) == ["OK"]
    assert tune(shard, *rows) == ["DONE"], "the reply was lost, and it is sent again"

    assert changes(shard)[0].startswith(f"3 {shard.now} operator 1\tlimit {LIMIT}\treset -\tback\n0 ")
    assert field(shard, f"limit:{LIMIT}") is None


def test_only_the_last_changes_are_kept(valkey_shard: Shard) -> None:
    shard = valkey_shard
    shard.watchful = False
    for number in range(1, 206):
        shard.tune("limit", LIMIT, str(number))

    found = changes(shard)

    assert len(found) == 200
    assert found[0].startswith("205 ")


def test_a_breaker_that_was_forced_says_by_whom(shard: Shard) -> None:
    gate = "breaker:dependency:carrier"
    shard.declare(**{gate: "50,20,10000,30000,1,60000"})
    shard.tune("open", gate, "600000 0", "they asked")
    opened = shard.now
    shard.elapse(10)
    shard.tune("auto", gate)

    auto, first = changes(shard)

    assert first.split("\n")[1] == ""
    assert auto.split("\n")[1] == f"open {opened + 600_000} 0 operator {opened} they asked"


def test_a_breaker_that_opened_by_itself_is_nobodys_setting(shard: Shard) -> None:
    gate = "breaker:dependency:carrier"
    shard.declare(**{gate: "50,2,10000,30000,1,60000"})
    shard.send(shard.exchange_call((), limit=0, calls=f"{gate} 0 2 0"))
    assert b"open" in shard.look().strings["breakers"]

    shard.tune("close", gate, "0 0")

    (only,) = changes(shard)
    assert only.split("\n")[1] == ""


def test_a_limit_that_is_changed_counts_once(shard: Shard) -> None:
    shard.tune("limit", LIMIT, "5")
    shard.tune("limit", LIMIT, "6")
    assert field(shard, "limits") == "1"

    shard.tune("reset", LIMIT)

    assert field(shard, "limits") is None
