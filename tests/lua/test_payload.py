"""Payloads are opaque: what went in comes out, byte for byte, over every station of a job's life (R34)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from streamworker.core.outcome import Fail, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from tests.lua.driver import LEASE, Shard, plan_of

PAYLOADS = {
    "empty object": b"{}",
    "every byte": bytes(range(256)),
    "zeros and newlines": b"\0\n\r\n\0 \t",
    "no text": b"\xff\xfe\x80\xc3\x28",
    "lua and redis": b"%s %d\"]] .. '\\0' -- $5\r\n*3\r\n",
    "json that a codec would bend": b'{"a":[],"b":1e400,"c":12345678901234567890,"d":0.1}',
    "a line of a record": b"1\ncx=cancelled\nre=2",
    "256 kB": random.Random(7).randbytes(262_144),
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_an_envelope_survives_every_station(shard: Shard, payload: bytes) -> None:
    shard.pass_hold()
    shard.put("j", env=payload, delay_ms=10)
    shard.elapse(10)
    shard.promote()
    claim = shard.claim_one()
    assert claim.envelope == payload, "enqueue, schedule, promote, claim"

    shard.settle(claim, Retry(10, ErrorClass.TRANSIENT, "timeout", "Timeout: x"))
    shard.elapse(10)
    shard.promote()
    claim = shard.claim_one()
    assert claim.envelope == payload, "retry"

    shard.settle(claim, Release(Reason.SHUTDOWN))
    claim = shard.claim_one()
    assert claim.envelope == payload, "release"

    shard.elapse(LEASE)
    (candidate,) = shard.found_dead("normal", "r")
    shard.recovery(candidate, Retry(10, ErrorClass.UNKNOWN, "worker_lost", "", "-", Reason.RECOVERED))
    shard.elapse(10)
    shard.promote()
    claim = shard.claim_one(plan=plan_of(("normal", 1, 0, "q")))
    assert claim.envelope == payload, "recovery, quarantine"

    shard.settle(claim, Fail(ErrorClass.PERSISTENT, "bad", "Bad: x"))
    letter = shard.letter("j")
    assert shard.look().streams["dlq"][letter][b"env"] == payload
    shard.forget_record("j")
    shard.replay(letter)
    claim = shard.claim_one()
    assert claim.envelope == payload, "dead letter, replay"


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_a_result_comes_out_as_it_went_in(shard: Shard, payload: bytes) -> None:
    shard.settle(shard.take("j"), Success(payload))

    assert shard.watch("j") == [b"succeeded", payload, b"", b""]


@pytest.mark.parametrize("text", ["a b\nc\0d", "Zoë: 世界 \N{PILE OF POO}", "%d %s"])
def test_an_error_text_comes_out_as_it_went_in(shard: Shard, text: str) -> None:
    claim = shard.take("j")
    shard.settle(claim, Retry(0, ErrorClass.TRANSIENT, "timeout", text))
    assert shard.look().body("j")[b"error"].decode() == text

    shard.settle(shard.claim_one(), Fail(ErrorClass.PERSISTENT, "bad", text))

    assert shard.watch("j") == [b"failed_terminal", b"", b"persistent bad", text.encode()]
    assert shard.look().dead_letters()[shard.letter("j")]["error"] == text


def _release(shard: Shard) -> None:
    shard.settle(shard.take("j", env=b"from the entry"), Release(Reason.SNOOZED, 10))


def _retry(shard: Shard) -> None:
    shard.settle(
        shard.take("j", env=b"from the entry"), Retry(10, ErrorClass.UNKNOWN, "value_error", "ValueError: x")
    )


def _delay(shard: Shard) -> None:
    shard.put("j", env=b"from the entry", delay_ms=10)


@pytest.mark.parametrize("park", [_release, _retry, _delay])
def test_the_body_holds_the_envelope_only_while_the_job_is_parked(
    shard: Shard, park: Callable[[Shard], None]
) -> None:
    park(shard)
    assert shard.look().body("j")[b"env"] == b"from the entry"

    shard.elapse(10)
    shard.promote()

    assert b"env" not in shard.look().body("j")
    assert shard.claim_one().envelope == b"from the entry"


def test_a_parked_job_that_ends_leaves_no_envelope_behind(shard: Shard) -> None:
    shard.put("j", delay_ms=1000)

    shard.cancel("j")

    assert shard.look().body("j") == {}
