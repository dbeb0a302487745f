"""Writes that a row refuses from whoever has been overtaken (R54, R55).

The row has two columns more: `fence_token bigint NOT NULL DEFAULT 0` and `fence_holder text`. Who takes a
lock touches the row first, so that a holder before it, frozen since, finds its token too old from then on,
and not only after the first write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from streamworker.core.errors import ConfigurationError, FencedOut, InvalidArgument
from streamworker.postgres.adapters import Adapter, adapt

_NAME = re.compile(r"[^\W\d][\w$]*")
#: True for a row that has seen no newer fence; its places are token, token, holder.
PREDICATE = "(fence_token < ? OR (fence_token = ? AND fence_holder = ?))"


class LockLike(Protocol):
    """A lock of a handler: what others of its name have to yield to."""

    @property
    def token(self) -> int: ...
    @property
    def holder(self) -> str: ...


class AttemptLike(Protocol):
    """The context of a handler: its claim has a fence, which is enough where an entity keeps others out."""

    @property
    def job_id(self) -> str: ...
    @property
    def fence(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Fence:
    """A token, and whose it is."""

    token: int
    holder: str

    @classmethod
    def of(cls, source: LockLike | AttemptLike | Fence) -> Fence:
        token = getattr(source, "token", None)
        if token is not None:
            return cls(token, source.holder)  # type: ignore[union-attr]
        return cls(source.fence, f"{source.job_id}:{source.fence}")  # type: ignore[union-attr]


def touch(
    connection: Any, table: str, where: Mapping[str, Any], fence: LockLike | AttemptLike | Fence
) -> Any:
    """Let the row know that this fence has come: from then on it refuses older ones. Raises FencedOut.

    To be awaited on connections that are to be awaited, as `enqueue_in`. Commit it before the work that takes
    time: a row that is locked keeps others waiting, and one that nobody has seen changed refuses nobody.
    """
    return fenced_update(connection, table, where, {}, fence)


def fenced_update(
    connection: Any,
    table: str,
    where: Mapping[str, Any],
    changes: Mapping[str, Any],
    fence: LockLike | AttemptLike | Fence,
) -> Any:
    """Change the row unless it has seen a newer fence. Raises FencedOut when it has, or is not there.

    `where` and `changes` are columns with their values; of `where` at least one. To be awaited on connections
    that are to be awaited.
    """
    if not where:
        raise InvalidArgument("where", where, "say which row: without a column it would be every one")
    ours = Fence.of(fence)
    assignments = ", ".join(
        ["fence_token = ?", "fence_holder = ?", *(f"{_quoted(name)} = ?" for name in changes)]
    )
    conditions = " AND ".join([*(f"{_quoted(name)} = ?" for name in where), PREDICATE])
    sql = f"UPDATE {_table(table)} SET {assignments} WHERE {conditions}"  # noqa: S608 - names are quoted
    values = [
        ours.token,
        ours.holder,
        *changes.values(),
        *where.values(),
        ours.token,
        ours.token,
        ours.holder,
    ]
    adapter = adapt(connection)
    if adapter.is_async:
        return _update(adapter, sql, values, table, where, ours)
    return _check(adapter.run(sql, values), table, where, ours)


async def _update(
    adapter: Adapter, sql: str, values: list[Any], table: str, where: Mapping[str, Any], fence: Fence
) -> None:
    _check(await adapter.run_async(sql, values), table, where, fence)


def _check(touched: int, table: str, where: Mapping[str, Any], fence: Fence) -> None:
    if touched < 0:
        raise ConfigurationError(
            f"nobody can tell whether a row of {table} took the fence: the driver does not say how many rows "
            "an UPDATE touched, as psycopg in pipeline mode; leave that for this statement"
        )
    if touched == 0:
        raise FencedOut(
            f"no row of {table} with {dict(where)} takes the fence {fence.token}: it has seen a newer one, "
            "or is not there"
        )


def _table(name: str) -> str:
    return ".".join(_quoted(part) for part in name.split("."))


def _quoted(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidArgument("name of a table or column", name, "use letters, digits, '_' and '$'")
    return f'"{name}"'
