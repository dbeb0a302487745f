"""The server in memory answers as a real one, in all that streamworker asks of it inside a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from streamworker.store.connection import Argument, NoScript, ReplyError, SyncLink
from streamworker.testing.fake import Fake
from tests.servers import BenchServer

GROUP = ("XREADGROUP", "GROUP", "g", "w", "COUNT", 2, "STREAMS", "s", ">")
FILLED: tuple[tuple[Argument, ...], ...] = (
    ("XADD", "s", "1-0", "id", "a", "env", "x"),
    ("XADD", "s", "2-0", "id", "b", "env", "y"),
    ("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM"),
)
IN_LUA = "local r = redis.call(unpack(ARGV)) if not r then return 'nothing' end return r"
#: What is sent before, and the command whose reply is compared.
CASES: dict[str, tuple[tuple[tuple[Argument, ...], ...], tuple[Argument, ...]]] = {
    "a group read in a script": (FILLED, ("EVAL", IN_LUA, 0, *GROUP)),
    "an empty group read in a script": ((*FILLED, GROUP), ("EVAL", IN_LUA, 0, *GROUP)),
    "an error that pcall catches": (
        (),
        ("EVAL", "return type(redis.pcall('XREADGROUP', unpack(ARGV)).err)", 0, *GROUP[1:]),
    ),
    "a read without a stream is NOGROUP": (
        (),
        ("EVAL", "return string.match(redis.pcall(unpack(ARGV)).err, '%u+')", 0, *GROUP),
    ),
    "a read without a group is NOGROUP": (
        FILLED[:2],
        ("EVAL", "return string.match(redis.pcall(unpack(ARGV)).err, '%u+')", 0, *GROUP),
    ),
    "pending entries": (
        (*FILLED, GROUP),
        ("EVAL", "return #redis.call('XPENDING', 's', 'g', '-', '+', 9)", 0),
    ),
    "an entry": (FILLED, ("XRANGE", "s", "1-0", "1-0")),
    "an acknowledged entry": (
        (*FILLED, GROUP, ("XACK", "s", "g", "1-0")),
        ("EVAL", "return redis.call('XPENDING', 's', 'g')[1]", 0),
    ),
    "a hash": ((("HSET", "h", "a", "1", "b", "2"),), ("HGETALL", "h")),
    "no hash": ((), ("HGETALL", "h")),
    "fields that are not there": ((("HSET", "h", "a", "1"),), ("HMGET", "h", "a", "b")),
    "a score": ((("ZADD", "z", "1796056779134", "a"),), ("ZSCORE", "z", "a")),
    "scores": ((("ZADD", "z", "1796056779134", "a"),), ("ZRANGE", "z", 0, 0, "WITHSCORES")),
    "a score in a script": (
        (("ZADD", "z", "1796056779134", "a"),),
        ("EVAL", "return redis.call('ZRANGE', 'z', 0, 0, 'WITHSCORES')", 0),
    ),
    "nothing": ((), ("GET", "k")),
    "a status": ((), ("SET", "k", "v")),
    "bytes": ((("SET", "k", b"\xff\x00"),), ("GET", "k")),
    "no life": ((("SET", "k", "v"),), ("PTTL", "k")),
    "no key": ((), ("PTTL", "k")),
    "a script that is not there": ((), ("EVALSHA", "0" * 40, 0)),
    "a wrong type": ((("SET", "k", "v"),), ("LPOP", "k")),
    "a script's own error": ((), ("EVAL", "return redis.error_reply('OOPS it failed')", 0)),
}


@pytest.fixture
def fake() -> Iterator[Fake]:
    one = Fake()
    yield one
    one.close()


@pytest.fixture
def real(valkey: BenchServer) -> Iterator[SyncLink]:
    link = SyncLink(f"redis://127.0.0.1:{valkey.port}/15")
    link.call("FLUSHDB")
    yield link
    link.call("FLUSHDB")
    link.close()


def answer(call: Any, command: tuple[Argument, ...]) -> object:
    try:
        return call(*command)
    except NoScript:
        return "NOSCRIPT"
    except ReplyError as error:
        return re.split(r"\W", str(error))[0]  # the words differ, the first is what code looks at


@pytest.mark.parametrize("case", CASES)
def test_a_reply_is_that_of_a_real_server(case: str, fake: Fake, real: SyncLink) -> None:
    before, command = CASES[case]
    for each in before:
        fake.call(*each)
        real.call(*each)

    assert answer(fake.call, command) == answer(real.call, command)


@pytest.mark.parametrize("command", [("BLPOP", "k", 0), (*GROUP[:6], "BLOCK", 0, *GROUP[6:])])
def test_what_would_block_the_event_loop_is_refused(command: tuple[Argument, ...], fake: Fake) -> None:
    with pytest.raises(ReplyError, match="would block"):
        fake.call(*command)
