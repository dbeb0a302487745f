"""Connections to Postgres, and what its errors mean to somebody who will try again."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from streamworker.core.errors import ConfigurationError, InvalidArgument, StreamworkerError
from streamworker.postgres.dsn import Dsn, read_dsn, redact, unreadable

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.transaction import Transaction

#: Seconds until a connection must stand, and until a statement must be answered.
CONNECT_TIMEOUT, STATEMENT_TIMEOUT = 5.0, 30.0
#: What our statements, and the functions of the schema, go by; both are among those that PgBouncer keeps, and
#: named as a server reports them.
_SETTINGS = {"TimeZone": "UTC", "standard_conforming_strings": "on"}
#: Kinds of problems that the next host of a DSN may not have.
_ELSEWHERE = frozenset({"connection", "timeout", "read_only"})
#: What we are called in `pg_stat_activity`.
APPLICATION = "streamworker"

#: SQLSTATE classes that are about what was sent, not about the server: data, constraint, limit.
_DATA = ("22", "23", "54")
#: Read-only: a primary that became a replica, or a disk that is full. The next connection may find another.
_READ_ONLY = ("25006", "53100")
#: What PgBouncer says before it hangs up, and what is to be done about it.
_SAID_BY_POOLERS = (
    (
        "statement pooling mode",
        "PgBouncer pools by statement, which has no transactions",
        "set pool_mode = transaction",
    ),
    (
        "unsupported startup parameter",
        "PgBouncer does not pass on what the DSN sets",
        "leave it out of the DSN, and set it for the role: ALTER ROLE ... SET",
    ),
)


class PostgresUnavailable(StreamworkerError, ConnectionError):
    """Postgres cannot be reached, or cannot write now. `kind` is one word, as in the metrics."""

    def __init__(self, kind: str, problem: str) -> None:
        self.kind = kind
        self.problem = problem
        super().__init__(f"Postgres: {problem}")


class PoolerUnfit(PostgresUnavailable):
    """What pools the connections does it so that we cannot work, until a person does as `advice` says."""

    def __init__(self, found: str, advice: str) -> None:
        self.found = found
        self.advice = advice
        super().__init__("error", f"{found}: {advice}")


async def connect(dsn: str, *, timeout: float = CONNECT_TIMEOUT, writes: bool = True) -> asyncpg.Connection:
    """One connection, to a server that can write unless `writes` is false.

    Within `timeout` seconds, which several hosts share, unless the DSN says `connect_timeout` for each.
    Statements are prepared under no name, so that PgBouncer in transaction mode may stand between. Raises
    PostgresUnavailable, or ConfigurationError when asyncpg is not installed or the DSN is none.
    """
    said = read_dsn(dsn)
    share = said.timeout or timeout / len(said.each)
    for left, each in zip(reversed(range(len(said.each))), said.each, strict=True):
        try:
            connection = await _connect(each, share, _settings(said))
            if writes:  # a pool may be busy: who has nowhere else to go waits as for any statement
                await _must_write(connection, share if len(said.each) > 1 else STATEMENT_TIMEOUT)
            return connection
        except PostgresUnavailable as error:
            if not left or error.kind not in _ELSEWHERE:
                raise
    raise AssertionError("a DSN has a host")


def _settings(said: Dsn) -> dict[str, str]:
    """What a connection is to have set."""
    return _SETTINGS | {"application_name": said.application or APPLICATION}


def transaction(connection: asyncpg.Connection) -> Transaction:
    """One of ours: each statement sees what others have committed before it, whatever the default is."""
    return connection.transaction(isolation="read_committed")


async def restore_settings(connection: asyncpg.Connection, dsn: str) -> None:
    """Set again what `connect` has set. Raises what asyncpg raises.

    DISCARD ALL leaves what came with the start-up of a session, but PgBouncer sets it by SET.
    """
    reported = connection.get_settings()
    lost = {
        name: value
        for name, value in _settings(read_dsn(dsn)).items()
        if getattr(reported, name, "") != value
    }
    if lost:
        await connection.execute(
            "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS lost(name, value)",
            list(lost),
            list(lost.values()),
        )


async def is_pooled(connection: asyncpg.Connection) -> bool:
    """Whether something like PgBouncer stands between, which makes up a process id for each client."""
    return bool(connection.get_server_pid() != await connection.fetchval("SELECT pg_backend_pid()"))


async def _must_write(connection: asyncpg.Connection, seconds: float) -> None:
    """Let go of a server that takes no writes. Raises PostgresUnavailable.

    Asked by a statement: PgBouncer tells new clients what the server was when it met it, and after a failover
    nobody came to the new primary.
    """
    try:
        if await connection.fetchval("SHOW transaction_read_only", timeout=seconds) == "off":
            return
    except BaseException as error:
        connection.terminate()
        if passing(error):
            raise unavailable(error) from error
        raise
    connection.terminate()
    raise PostgresUnavailable("read_only", "it takes no writes now (transaction_read_only is on)")


async def _connect(dsn: str, timeout: float, settings: dict[str, str]) -> asyncpg.Connection:
    """To the one host of this DSN, whatever it is."""
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
            target_session_attrs=SessionAttribute.any,
        )
    except asyncpg.PostgresError as error:
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
    if isinstance(error, PostgresUnavailable):
        return error

    text = str(error) or type(error).__name__
    state = getattr(error, "sqlstate", None) or ""
    if isinstance(error, TimeoutError):
        return PostgresUnavailable("timeout", "it did not answer in time")
    for said, problem, advice in _SAID_BY_POOLERS:
        if said in text and state.startswith("08"):
            return PoolerUnfit(f"{problem} ({text})", advice)
    if state in _READ_ONLY:
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
