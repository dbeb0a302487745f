"""Runs one statement on whatever connection a user has, inside the transaction that is open on it.

asyncpg, psycopg 2 and 3, SQLAlchemy and Django are recognised by the module of the object's class and never
imported unless the object is theirs. Nothing here commits.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from streamworker.core.errors import ConfigurationError

_PLACE = re.compile(r"\?")
#: Runs a statement whose places are `?`; says how many rows it touched, or promises to.
Execute = Callable[[str, Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Adapter:
    """How statements reach Postgres over one connection."""

    execute: Execute
    #: What `execute` returns is to be awaited.
    is_async: bool

    def run(self, sql: str, values: Sequence[Any]) -> int:
        """For a connection that blocks: how many rows were touched."""
        return int(self.execute(sql, values))

    async def run_async(self, sql: str, values: Sequence[Any]) -> int:
        """The same for any connection."""
        touched = self.execute(sql, values)
        return int(await touched if inspect.isawaitable(touched) else touched)


def adapt(connection: Any) -> Adapter:
    """Raises ConfigurationError for an object that is no connection of a library that is known."""
    for cls in type(connection).__mro__:
        library = cls.__module__.partition(".")[0]
        if library == "streamworker":  # the transaction of a handler
            return adapt(connection.connection)
        if library == "asyncpg":
            return Adapter(_asyncpg(connection), True)
        if library == "sqlalchemy":
            return _sqlalchemy(connection)
        if library == "psycopg":
            return Adapter(_psycopg(connection), cls.__name__.startswith("Async"))
        if library in ("psycopg2", "django"):
            return Adapter(_db_api(connection), False)
    raise ConfigurationError(
        f"a {type(connection).__module__}.{type(connection).__qualname__} is no connection that is known; "
        "pass one of asyncpg, psycopg, SQLAlchemy (a session or a connection) or Django, or the transaction "
        "of a handler"
    )


def _numbered(sql: str) -> str:
    numbers = iter(range(1, sql.count("?") + 1))
    return _PLACE.sub(lambda _: f"${next(numbers)}", sql)


def _asyncpg(connection: Any) -> Execute:
    async def execute(sql: str, values: Sequence[Any]) -> int:
        status: str = await connection.execute(_numbered(sql), *values)
        return int(status.rpartition(" ")[2])

    return execute


def _sqlalchemy(connection: Any) -> Adapter:
    from sqlalchemy import text

    def statement(sql: str, values: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        numbers = iter(range(len(values)))
        return text(_PLACE.sub(lambda _: f":p{next(numbers)}", sql)), {
            f"p{number}": value for number, value in enumerate(values)
        }

    def execute(sql: str, values: Sequence[Any]) -> Any:
        return _touched(connection.execute(*statement(sql, values)))

    async def execute_async(sql: str, values: Sequence[Any]) -> int:
        return int(_touched(await connection.execute(*statement(sql, values))))

    if any("async" in cls.__module__ for cls in type(connection).__mro__):
        return Adapter(execute_async, True)
    return Adapter(execute, False)


def _psycopg(connection: Any) -> Execute:
    """A connection or a cursor: both have `execute`, which gives a cursor, or promises one."""

    def execute(sql: str, values: Sequence[Any]) -> Any:
        cursor = connection.execute(_PLACE.sub("%s", sql), values)
        return _awaited(cursor) if inspect.isawaitable(cursor) else _touched(cursor)

    async def _awaited(cursor: Awaitable[Any]) -> int:
        return _touched(await cursor)

    return execute


def _db_api(connection: Any) -> Execute:
    def execute(sql: str, values: Sequence[Any]) -> int:
        with connection.cursor() as cursor:
            cursor.execute(_PLACE.sub("%s", sql), values)
            return _touched(cursor)

    return execute


def _touched(cursor: Any) -> int:
    return int(cursor.rowcount)
