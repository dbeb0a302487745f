"""`async with ctx.transaction() as tx`: what a handler writes to Postgres happens once, though it runs twice.

The row of the operation is inserted first and commits with everything else. The next attempt finds it, and
succeeds with what was recorded without running the block.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio

from streamworker.core import codec
from streamworker.core.errors import ConfigurationError, OperationConflict
from streamworker.effects import operations
from streamworker.effects.operations import Found

if TYPE_CHECKING:
    import asyncpg

    from streamworker.effects.attempt import Effects
    from streamworker.effects.connections import Borrowed

T = TypeVar("T")

#: Seconds that a rollback may take before the connection is cut, which comes to the same.
ROLLBACK_SECONDS = 2.0


class EffectCommitted(BaseException):
    """An earlier attempt has committed the effect: the handler is left, and the job succeeds with its result.

    No Exception, so that no `except Exception` of a handler takes it for a failure.
    """

    def __init__(self, result: bytes) -> None:
        self.result = result
        super().__init__("an earlier attempt of this job has committed its effect")


class _StepDone(Exception):
    """Leaves the block of a step that is done."""


def committed_in(error: BaseException) -> EffectCommitted | None:
    """That one, also out of a group of errors as task groups make them."""
    left = [error]  # no recursion: groups may lie deeper than that goes
    while left:
        one = left.pop()
        if isinstance(one, EffectCommitted):
            return one
        if isinstance(one, BaseExceptionGroup):
            left += reversed(one.exceptions)
    return None


class Transaction:
    """One transaction of a handler, as the block of `async with` has it.

    It takes statements as a connection of asyncpg does; `connection` is that connection, for all else. What
    is set as `result` is recorded with the effect; a handler that returns nothing then has it as its
    result.
    """

    __slots__ = (
        *("_borrowed", "_doubtful", "_effects", "_step", "_transaction", "done", "result", "result_ref"),
    )

    def __init__(self, effects: Effects, step: str) -> None:
        #: What is recorded: JSON, as the result of a handler. In a step that is done, what was recorded.
        self.result: Any = None
        #: Where a result is kept that is too large to record, such as the key of an object.
        self.result_ref: str | None = None
        #: An earlier attempt has committed this step. The first statement leaves the block.
        self.done = False
        self._effects = effects
        self._step = step
        self._borrowed: Borrowed | None = None
        self._transaction: Any = None
        #: A statement has failed, or may have: a commit would roll back and say nothing.
        self._doubtful = False

    @property
    def connection(self) -> asyncpg.Connection:
        """The connection of the transaction, for what the methods here do not offer."""
        self._doubtful = True  # nobody tells us what becomes of its statements
        return self._link

    @property
    def _link(self) -> asyncpg.Connection:
        if self.done:
            raise _StepDone
        if self._borrowed is None:
            raise ConfigurationError(
                "a transaction is used within its block: async with ctx.transaction() as tx", lasting=True
            )
        return self._borrowed.connection

    async def execute(self, query: str, *args: Any) -> str:
        """Run a statement; returns its status, such as `UPDATE 1`."""
        return await self._watched(self._link.execute(query, *args))

    async def executemany(self, query: str, args: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each sequence of arguments."""
        await self._watched(self._link.executemany(query, args))

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """All rows."""
        return await self._watched(self._link.fetch(query, *args))

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        """The first row."""
        return await self._watched(self._link.fetchrow(query, *args))

    async def fetchval(self, query: str, *args: Any) -> Any:
        """The first value of the first row."""
        return await self._watched(self._link.fetchval(query, *args))

    async def _watched(self, statement: Awaitable[T]) -> T:
        try:
            return await statement
        except BaseException:
            self._doubtful = True
            raise

    async def __aenter__(self) -> Self:
        effects = self._effects
        effects.enter(self._step)
        try:
            await effects.announce()
            self._borrowed = await effects.connections.borrow(effects.lane)
            try:
                self._transaction = self._borrowed.connection.transaction()
                await self._transaction.start()
                found = await operations.take(
                    self._borrowed.connection,
                    effects.subject,
                    self._step,
                    status="succeeded",
                    fingerprint=effects.fingerprint,
                    job_id=effects.job_id,
                    fence=effects.fence,
                    silence_ms=effects.silence_ms,
                )
            except BaseException:
                await self._roll_back(sound=False)
                raise
            if found is not None:
                await self._roll_back(sound=True)
                self._find(found)
        except BaseException:
            effects.leave()
            raise
        return self

    def _find(self, found: Found) -> None:
        effects = self._effects
        if not found.succeeded:
            raise ConfigurationError(
                f"{self._step!r} is an operation of this task: name the transaction otherwise", lasting=True
            )
        if found.fingerprint != effects.fingerprint:
            raise OperationConflict(effects.subject.task, effects.subject.key, self._step)
        effects.stale.update(found.cache_keys)
        if not self._step:
            raise EffectCommitted(found.result or b"")
        self.done = True
        self.result = codec.decode(found.result) if found.result else None
        self.result_ref = found.result_ref

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._effects.leave()
        if self.done:
            return kind is not None and issubclass(kind, _StepDone)
        if error is not None:
            await self._roll_back(sound=isinstance(error, Exception))
            return False
        await self._commit()
        return False

    async def _commit(self) -> None:
        assert self._borrowed is not None
        effects, keys = self._effects, self._effects.stale
        try:
            if not self._borrowed.connection.is_in_transaction():
                raise ConfigurationError(
                    "a statement of the block has ended its transaction, and what came after it stood alone: "
                    "leave COMMIT and ROLLBACK to the block; tx.connection.transaction() is a savepoint",
                    lasting=True,
                )
            result = b"" if self.result is None else codec.encode_result(self.result)
            if result or keys or self.result_ref is not None:
                await operations.record(
                    self._borrowed.connection,
                    effects.subject,
                    self._step,
                    result=result,
                    result_ref=self.result_ref,
                    cache_keys=keys,
                )
            elif self._doubtful:
                await self._borrowed.connection.execute("SELECT 1")
            # Whether a commit that was cut off happened is not known here: the next attempt finds out.
            await self._transaction.commit()
        except BaseException:
            await self._roll_back(sound=False)
            raise
        self._hand_back(sound=True)
        if not self._step:
            effects.result = self.result

    async def _roll_back(self, *, sound: bool) -> None:
        """Nothing of it stays. In a block of its own: the handler may be cancelled (R20)."""
        ended = False
        if sound:
            with anyio.move_on_after(ROLLBACK_SECONDS, shield=True):
                try:
                    await self._transaction.rollback()
                    ended = True
                except Exception:
                    ended = False  # the connection is broken: the server rolls back
        self._hand_back(sound=ended)

    def _hand_back(self, *, sound: bool) -> None:
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            self._effects.connections.hand_back(borrowed, sound=sound, used=True)

    def __enter__(self) -> Self:
        raise ConfigurationError(
            "a transaction is for coroutine handlers (async def): async with ctx.transaction() as tx",
            lasting=True,
        )

    def __exit__(self, *_: object) -> None:
        return None
