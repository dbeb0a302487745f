"""`async with ctx.operation("charge") as op`: an effect elsewhere, and in Postgres how far it came."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from streamworker.core import codec
from streamworker.core.errors import ConfigurationError, OperationConflict
from streamworker.effects import operations
from streamworker.effects.attempt import Effects
from streamworker.effects.operations import Found


class Operation:
    """One call of something that cannot take part in a transaction, such as a payment provider.

    `started` is written before the block, `succeeded` with `result` after it. So a later attempt knows:
    nothing (it runs as the first), `uncertain` (an earlier one had begun, and nobody knows whether the call
    was made), or `done` (with the `result` that was recorded). The block runs in any case: ask `done`
    first.
    """

    __slots__ = ("_dropped", "_effects", "_step", "done", "key", "result", "result_ref", "uncertain")

    def __init__(self, effects: Effects, name: str) -> None:
        #: To be sent along to a provider that honours such keys: the same for every attempt and replay.
        self.key = f"{effects.subject.key}:{name}"
        #: An earlier attempt has done it: `result` is there, and there is nothing to call.
        self.done = False
        #: An earlier attempt began and never said how it ended: ask the other side, or send the same key.
        self.uncertain = False
        #: What the call came to: JSON, as the result of a handler.
        self.result: Any = None
        self.result_ref: str | None = None
        self._effects = effects
        self._step = name
        self._dropped = False

    def did_not_happen(self) -> None:
        """The call was certainly not made, or was refused: the next attempt begins as the first."""
        self._dropped = True

    async def __aenter__(self) -> Self:
        effects = self._effects
        async with effects.connections.connection(effects.lane) as connection:
            found = await operations.take(
                connection,
                effects.subject,
                self._step,
                status="started",
                fingerprint=effects.fingerprint,
                job_id=effects.job_id,
                fence=effects.fence,
                silence_ms=effects.silence_ms,
            )
        if found is not None:
            self._find(found)
        return self

    def _find(self, found: Found) -> None:
        effects = self._effects
        if found.fingerprint != effects.fingerprint:
            subject, begun = effects.subject, not found.succeeded
            raise OperationConflict(subject.task, subject.key, self._step, begun=begun)
        self.done, self.uncertain = found.succeeded, not found.succeeded
        self.result = codec.decode(found.result) if found.result else None
        self.result_ref = found.result_ref

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        effects = self._effects
        if self.done or (error is not None and not self._dropped):
            return
        async with effects.connections.connection(effects.lane) as connection:
            if self._dropped:
                await operations.drop(connection, effects.subject, self._step, fence=effects.fence)
                return
            first = await operations.finish(
                connection,
                effects.subject,
                self._step,
                result=b"" if self.result is None else codec.encode_result(self.result),
                result_ref=self.result_ref,
                fence=effects.fence,
            )
            if not first and (found := await operations.find(connection, effects.subject, self._step)):
                self._find(found)  # another attempt has said so before us: its word stands
        if error is None:
            self.done, self.uncertain = True, False

    def __enter__(self) -> Self:
        raise ConfigurationError(
            "an operation is for coroutine handlers (async def): async with ctx.operation(name) as op",
            lasting=True,
        )

    def __exit__(self, *_: object) -> None:
        return None
