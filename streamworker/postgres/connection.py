"""Connections to Postgres, and what its errors mean to somebody who will try again."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from streamworker.core.errors import ConfigurationError, InvalidArgument, StreamworkerError
from streamworker.postgres.dsn import read_dsn, redact, unreadable

if TYPE_CHECKING:
    import asyncpg

#: Seconds until a connection must stand, and until a statement must be answered.
CONNECT_TIMEOUT, STATEMENT_TIMEOUT = 5.0, 30.0
#: What our statements, and the functions of the schema, go by; both are among those that PgBouncer keeps.
_SETTINGS = {"timezone": "UTC", "standard_conforming_strings": "on"}
#: Kinds of problems that the next host of a DSN may not have.
_ELSEWHERE = frozenset({"connection", "timeout", "read_only"})
#: What we are called in `pg_stat_activity`.
APPLICATION = "streamworker"

#: SQLSTATE classes that are about what was sent, not about the server: data, constraint, limit.
_DATA = ("22", "23", "54")
#: Read-only: a primary that became a replica, or a disk that is full. The next connection may find another.
_READ_ONLY = ("25006", "53100")


class PostgresUnavailable(StreamworkerError, ConnectionError):
    """Postgres cannot be reached, or cannot write now. `kind` is one word, as in the metrics."""

    def __init__(self, kind: str, problem: str) -> None:
        self.kind = kind
        self.problem = problem
        super().__init__(f"Postgres: {problem}")


async def connect(dsn: str, *, timeout: float = CONNECT_TIMEOUT, writes: bool = True) -> asyncpg.Connection:
    """One connection, to a server that can write unless `writes` is false.

    Within `timeout` seconds, which several hosts share, unless the DSN says `connect_timeout` for each.
    Statements are prepared under no name, so that PgBouncer in transaction mode may stand between. Raises
    PostgresUnavailable, or ConfigurationError when asyncpg is not installed or the DSN is none.
    """
    said = read_dsn(dsn)
    settings = dict(_SETTINGS) | ({} if said.named else {"application_name": APPLICATION})
    for left, each in zip(reversed(range(len(said.each))), said.each, strict=True):
        try:
            return await _connect(each, said.timeout or timeout / len(said.each), settings, writes)
        except PostgresUnavailable as error:
            if not left or error.kind not in _ELSEWHERE:
                raise
    raise AssertionError("a DSN has a host")


async def _connect(dsn: str, timeout: float, settings: dict[str, str], writes: bool) -> asyncpg.Connection:
    """To the one host of this DSN."""
    try:
        import asyncpg
        from asyncpg.connect_utils import SessionAttribute
    except ImportError:
        raise ConfigurationError("asyncpg is not installed: pip install 'streamworker[postgres]'") from None
    try:
        connection: asyncpg.Connection = await asyncpg.connect(
            dsn,
            timeout=timeout,
            command_timeout=STATEMENT_TIMEOUT,
            statement_cache_size=0,
            server_settings=settings,
            target_session_attrs=SessionAttribute.read_write if writes else SessionAttribute.any,
        )
    except (asyncpg.PostgresError, asyncpg.TargetServerAttributeNotMatched) as error:
        raise unavailable(error) from error
    except OSError as error:  # a time-out, and a certificate that is not taken, as well
        problem = unavailable(error)
        raise PostgresUnavailable(problem.kind, f"{problem.problem} ({redact(dsn)})") from error
    except asyncpg.InterfaceError as error:
        raise ConfigurationError(f"the Postgres DSN {redact(dsn)!r} cannot be used: {error}") from None
    except ValueError:
        raise unreadable(dsn) from None
    return connection


def unavailable(error: BaseException) -> PostgresUnavailable:
    """What it means that this went wrong."""
    import asyncpg

    if isinstance(error, PostgresUnavailable):
        return error

    text = str(error) or type(error).__name__
    state = getattr(error, "sqlstate", None) or ""
    if isinstance(error, TimeoutError):
        return PostgresUnavailable("timeout", "it did not answer in time")
    if state in _READ_ONLY or isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return PostgresUnavailable("read_only", f"it takes no writes now ({text})")
    if state in ("42501", "28000", "28P01"):
        return PostgresUnavailable("refused", f"{text}; see docs/how-to/postgres.md for the rights it needs")
    if state in ("3F000", "42P01", "42883", "42703"):
        return PostgresUnavailable(
            "schema", f"{text}; bring the schema up to date: streamworker mirror migrate"
        )
    if state and not state.startswith(("08", "57", "53")):
        return PostgresUnavailable("error", f"{text} ({state})")
    return PostgresUnavailable("connection", text)


def concerns_data(error: BaseException) -> bool:
    """Whether the error is about a value that was sent: another batch would not meet it."""
    import asyncpg

    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_DATA)
    ours = (UnicodeError, OverflowError, InvalidArgument, struct.error)  # met before it was sent
    return isinstance(error, (asyncpg.DataError, *ours))


def took_too_long(error: BaseException) -> bool:
    """Whether we, or the server, gave up on a statement (57014: `statement_timeout`, or somebody's hand)."""
    return isinstance(error, TimeoutError) or getattr(error, "sqlstate", None) == "57014"


def passing(error: BaseException) -> bool:
    """Whether the error is one of Postgres or the way to it, so that trying again makes sense."""
    import asyncpg

    if isinstance(error, StreamworkerError):  # one that lost Redis is an OSError, too
        return isinstance(error, PostgresUnavailable)
    return isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError | OSError | TimeoutError)
