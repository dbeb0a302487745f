"""Fences grow whatever happens to the clock, the counter or the whole database (D4)."""

from __future__ import annotations

from tests.lua.driver import LEASE, START, Shard


def test_fences_follow_the_clock_and_never_fall(shard: Shard) -> None:
    first = shard.take("a")
    assert first.fence == START * 1024
    shard.put("b")
    shard.put("c")

    assert [claim.fence for claim in shard.claim()] == [first.fence + 1, first.fence + 2]

    shard.now -= 60_000
    assert shard.take("d").fence == first.fence + 3, "a clock that jumps back"


def test_fences_grow_though_the_counter_is_lost(shard: Shard) -> None:
    last = shard.take("a").fence
    shard.elapse(1)
    shard.redis("DEL", shard.keys.fence)
    shard.tampered.add("fence")

    claim = shard.take("b")

    assert claim.fence > last
    assert claim.fence < 2**53


def test_fences_grow_though_everything_is_lost(shard: Shard) -> None:
    last = shard.take("a").fence
    for key in shard.redis("KEYS", f"{shard.keys.tag}:*"):
        shard.redis("DEL", key)
    shard.last = shard.look()
    shard.sessions.clear()
    shard.elapse(1, swept=False)

    assert shard.take("b").fence > last


def test_without_a_clock_the_time_is_the_servers(shard: Shard) -> None:
    seconds, micros = (int(word) for word in shard.redis("TIME"))
    shard.now = seconds * 1000 + micros // 1000
    shard.put("j")
    shard.session()
    call = shard.claim_call()

    reply = shard.send(type(call)(call.script, ("", *call.argv[1:])))

    record = shard.record("j")
    assert reply[0] == b"OK"
    assert 0 <= record.lease_until - LEASE - shard.now < 5_000
    assert record.fence // 1024 == record.lease_until - LEASE
