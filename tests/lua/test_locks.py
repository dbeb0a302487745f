"""Locks for handlers: one holder, a token that grows, nobody frees what is another's."""

from __future__ import annotations

from typing import Any

from streamworker.core.outcome import Success
from streamworker.store import scripts
from tests.lua.driver import Shard

TTL = 60_000


def acquire(shard: Shard, holder: str = "a:1", name: str = "order:7", *, floor: int = 0) -> tuple[str, int]:
    call = scripts.lock_acquire(clock=shard.clock, name=name, holder=holder, ttl_ms=TTL, floor=floor)
    word, number = shard.send(call)
    return word.decode(), int(number)


def extend(shard: Shard, holder: str) -> Any:
    return shard.send(scripts.lock_extend(name="order:7", holder=holder, ttl_ms=TTL)).decode()


def release(shard: Shard, holder: str) -> Any:
    return shard.send(scripts.lock_release(name="order:7", holder=holder)).decode()


def test_a_lock_has_one_holder(shard: Shard) -> None:
    assert acquire(shard)[0] == "OK"

    word, left = acquire(shard, "b:2")

    assert word == "BUSY"
    assert 0 < left <= TTL


def test_the_same_holder_gets_the_same_token_again(shard: Shard) -> None:
    assert acquire(shard) == acquire(shard)


def test_tokens_grow_also_between_locks_and_claims(shard: Shard) -> None:
    _, first = acquire(shard)
    claim = shard.take("j")
    _, second = acquire(shard, "j:5", "another")
    shard.settle(claim, Success())

    assert first < claim.fence < second


def test_a_token_is_above_what_a_database_has_seen(shard: Shard) -> None:
    assert acquire(shard, floor=2**52)[1] == 2**52 + 1


def test_a_released_lock_is_the_next_ones(shard: Shard) -> None:
    acquire(shard)

    assert release(shard, "a:1") == "OK"
    assert acquire(shard, "b:2")[0] == "OK"


def test_nobody_frees_or_extends_what_is_anothers(shard: Shard) -> None:
    acquire(shard)

    assert release(shard, "b:2") == "STALE"
    assert extend(shard, "b:2") == "STALE"
    assert acquire(shard, "b:2")[0] == "BUSY"


def test_a_lock_ends_by_itself(shard: Shard) -> None:
    acquire(shard)
    assert 0 < shard.look().ttls["lock:order:7"] <= TTL
    shard.redis("PEXPIRE", shard.keys.lock("order:7"), 1_000)

    assert extend(shard, "a:1") == "OK"
    assert shard.look().ttls["lock:order:7"] > 1_000
