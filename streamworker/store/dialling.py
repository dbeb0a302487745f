"""Makes a connection of redis-py to where a URL leads, through sentinels if it names them."""

from __future__ import annotations

import asyncio
from typing import Any

from streamworker.core.errors import ServerUnsuitable
from streamworker.store.handshake import (
    CONNECT_TIMEOUT,
    no_connection,
    options,
    unconnected,
)
from streamworker.store.replies import ReplyError
from streamworker.store.sentinels import ASKING, Sentinels, Step, sentinels_of


def check_url(url: str) -> None:
    """Refuse a URL that no connection can be made of. Raises UnusableUrl."""
    import redis

    sentinels = sentinels_of(url)
    if sentinels is None:
        unconnected(redis, url, {})
        return
    for place in range(len(sentinels.addresses)):
        unconnected(redis, sentinels.asked_at(place), {})
    unconnected(redis, sentinels.named("localhost", "1"), {})


async def dial(url: str, timeout: float) -> Any:
    """A connection of redis.asyncio that is connected, to the primary.

    `timeout` in seconds, for all of it if it is less than CONNECT_TIMEOUT. Raises ConnectionLost,
    ServerUnsuitable, or whatever redis-py does.
    """
    given = _without_limits(timeout)
    check_url(url)  # the synchronous half is stricter, and the heartbeat needs it
    async with asyncio.timeout(min(CONNECT_TIMEOUT, timeout)):
        sentinels = sentinels_of(url)
        if sentinels is None:
            return await _connected(url, given)
        search = sentinels.search()
        step = next(search)
        while True:
            connection, answer = await _take(step, given)
            try:
                step = search.send(answer)
            except StopIteration:
                return connection
            except BaseException:
                discard(connection)
                raise
            discard(connection)


def _without_limits(timeout: float) -> dict[str, Any]:
    # The deadline is ours: redis-py's, made with asyncio.wait_for, can swallow a cancellation.
    return options(timeout) | {"socket_timeout": None, "socket_connect_timeout": None}


async def _connected(url: str, given: dict[str, Any]) -> Any:
    import redis.asyncio

    connection = unconnected(redis.asyncio, url, given)
    try:
        await connection.connect()
    except BaseException:
        discard(connection)
        raise
    return connection


async def _take(step: Step, given: dict[str, Any]) -> tuple[Any, Any]:
    """The connection, None if there is none, and the reply or the error."""
    connection = None
    try:
        async with asyncio.timeout(step.seconds):
            connection = await _connected(step.url, given)
            await connection.send_command(*step.command)
            return connection, await connection.read_response()
    except Exception as error:  # it may fail in any way: redis-py reads files, and looks up names
        return connection, _answer_of(step, error)
    except BaseException:
        discard(connection)
        raise


async def ask_each(sentinels: Sentinels, *command: str) -> dict[str, Any]:
    """What each of them replies, or the error, by its host:port."""
    given = _without_limits(ASKING)

    async def ask(at: str) -> Any:
        connection, answer = await _take(Step(at, command, ASKING), given)
        discard(connection)
        return answer

    answers = await asyncio.gather(*map(ask, map(sentinels.asked_at, range(len(sentinels.addresses)))))
    return dict(zip(sentinels.addresses, answers, strict=True))


def discard(connection: Any) -> None:
    """Close the socket of a connection that did not come about, or is not wanted."""
    writer = getattr(connection, "_writer", None)
    if writer is not None:
        writer.transport.abort()
        connection._reader = connection._writer = None


def dial_blocking(url: str, timeout: float) -> Any:
    """As `dial`, a connection of redis-py for a thread; `timeout` in seconds for each reply."""
    import redis

    sentinels = sentinels_of(url)
    if sentinels is None:
        connection = unconnected(redis, url, options(timeout))
        connection.connect()
        return connection
    search = sentinels.search()
    step = next(search)
    while True:
        connection, answer = _take_blocking(step, timeout)
        try:
            step = search.send(answer)
        except StopIteration:
            connection._sock.settimeout(timeout)
            return connection
        except BaseException:
            _discard_blocking(connection)
            raise
        _discard_blocking(connection)


def _take_blocking(step: Step, timeout: float) -> tuple[Any, Any]:
    import redis

    seconds = min(step.seconds, timeout)
    connection = None
    try:
        connection = unconnected(redis, step.url, options(timeout) | _limits(seconds))
        connection.connect()
        connection.send_command(*step.command)
        return connection, connection.read_response()
    except Exception as error:
        return connection, _answer_of(step, error)
    except BaseException:
        _discard_blocking(connection)
        raise


def _answer_of(step: Step, error: Exception) -> Exception:
    """Ours for redis-py's: a refusal of the command is an answer, anything else no connection."""
    from redis.exceptions import NoPermissionError, ResponseError

    ours = no_connection(step.url, error)
    if isinstance(ours, ServerUnsuitable) or not isinstance(error, ResponseError):
        return ours
    # redis-py takes this word off
    return ReplyError(f"NOPERM {error}" if isinstance(error, NoPermissionError) else str(error))


def _limits(seconds: float) -> dict[str, Any]:
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds}


def _discard_blocking(connection: Any) -> None:
    if connection is not None:
        connection.disconnect()
