"""Calls that are posted: who waits hears of the reply in the turn of the loop in which it came, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamworker.core.errors import ConnectionLost
from streamworker.store.connection import Link, NoScript
from tests.servers import BenchServer


@pytest.fixture
async def link(server: BenchServer) -> AsyncIterator[Link]:
    link = Link(server.url)
    await link.connect()
    yield link
    await link.close()


async def test_what_is_posted_and_what_is_sent_are_answered_in_order(link: Link) -> None:
    told: list[Any] = []

    link.post(told.append, "ECHO", "first")
    reply = link.send("ECHO", "second")
    link.post(told.append, "EVALSHA", "0" * 40, 0)
    last = link.send("ECHO", "last")

    assert [await reply, await last] == [b"second", b"last"]
    assert told[0] == b"first"
    assert isinstance(told[1], NoScript)
    assert len(told) == 2


async def test_who_hears_of_a_reply_may_send_the_next_call_at_once(link: Link) -> None:
    told: list[Any] = []
    over = asyncio.Event()

    def next_call(reply: Any) -> None:
        told.append(reply)
        if len(told) < 3:
            link.post(next_call, "ECHO", str(len(told)))
        else:
            over.set()

    link.post(next_call, "ECHO", "0")
    await over.wait()

    assert told == [b"0", b"1", b"2"]
    assert link.in_flight == 0


async def test_a_lost_connection_is_told_once_and_not_before_the_call_is_made(link: Link) -> None:
    told: list[Any] = []
    link.post(told.append, "BLPOP", "nothing", 0)

    link.abort()

    assert told == []
    await asyncio.sleep(0)
    assert [type(each) for each in told] == [ConnectionLost]
    with pytest.raises(ConnectionLost):
        link.post(told.append, "PING")
    assert len(told) == 1


async def test_who_drops_the_connection_on_a_reply_hears_of_the_others_that_they_are_lost(link: Link) -> None:
    """Replies that were read together with that one belong to nobody."""
    told: list[Any] = []
    link.post(lambda _: link.abort(), "ECHO", "first")
    link.post(told.append, "ECHO", "second")
    reply = link.send("ECHO", "third")

    with pytest.raises(ConnectionLost):
        await reply
    await asyncio.sleep(0)

    assert [type(each) for each in told] == [ConnectionLost]


async def test_a_fault_of_who_hears_of_a_reply_is_no_fault_of_the_connection(link: Link) -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))

    def at_fault(reply: Any) -> None:
        raise ZeroDivisionError

    link.post(at_fault, "PING")

    assert await link.call("ECHO", "after") == b"after"
    assert [type(context["exception"]) for context in said] == [ZeroDivisionError]
    assert link.errors == {}
