"""What a handler knows of the attempt it runs, and reaches through it: locks, calls, effects, the cache."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError
from streamworker.core.job import Envelope
from streamworker.core.limits import Dependency

if TYPE_CHECKING:  # a producer does not load what handlers use
    from streamworker.effects.attempt import Effecting, Effects
    from streamworker.effects.operation import Operation
    from streamworker.effects.transaction import Transaction
    from streamworker.flow.cache import Cache
    from streamworker.flow.dependency import Dependencies, DependencyCall
    from streamworker.flow.locks import Lock, Locking, Locks

_handler_log = logging.getLogger("streamworker.job")


@dataclass(slots=True)
class Context:
    """What a handler knows of the attempt it runs. Its first parameter, always."""

    job_id: str
    task: str
    #: The idempotency key, or the job id when none was given: the same for every attempt and replay, so
    #: it is what to send along to a payment provider.
    key: str
    attempt: int
    #: Grows with every claim; a write that names it can be refused when a newer claim has written.
    fence: int
    lane: str
    tenant: str | None
    correlation_id: str
    #: What the app's lifespan yielded.
    state: Any = None
    #: The time for which a cron's job was made, in the cron's time zone; None for other jobs.
    tick: datetime | None = None
    _log: logging.LoggerAdapter[logging.Logger] | None = field(default=None, repr=False)
    _dependencies: Dependencies | None = field(default=None, repr=False)
    _locking: Locking | None = field(default=None, repr=False)
    _locks: Locks | None = field(default=None, repr=False)
    #: The envelope: a handler may change what it was given, and its key stands for what was sent.
    _sent: bytes = field(default=b"", repr=False)
    _effecting: Effecting | None = field(default=None, repr=False)
    _effects: Effects | None = field(default=None, repr=False)
    _stale: set[str] | None = field(default=None, repr=False)
    _cache: Cache | None = field(default=None, repr=False)

    def dependency(self, name: str) -> DependencyCall:
        """One call of a dependency of the app, as `async with ctx.dependency("carrier") as call:`.

        It has the time limits that `Dependency(...)` declares, and is counted by how it went. In a context
        that you made yourself, as in a test, every name has the default limits. Raises ConfigurationError.
        """
        if self._dependencies is not None:
            call = self._dependencies.call(name)
            if self._locks is not None:
                call.also = self._locks.slow_call
            return call
        from streamworker.flow.dependency import DependencyCall

        return DependencyCall(name, Dependency())

    def lock(self, name: str, *, ttl: Duration | None = None, wait: Duration = 10.0, floor: int = 0) -> Lock:
        """A fenced lock for a part of the handler, as `async with ctx.lock(f"order:{order_id}") as lock:`.

        `lock.token` is larger than every one before, for writes that refuse an older one. The lock is
        renewed while it is held and dies with its holder after `ttl` (30 s, or the timeout if that is less).
        A handler waits up to `wait` for it, then LockBusy is raised, which is transient; LockLost when it
        could not be renewed. `floor`: the token is larger than that, such as one that a row has seen before
        Redis lost its data. In a context that you made yourself the lock is always free. Raises
        ConfigurationError for a ttl above the task's timeout.
        """
        if self._locks is None:
            from streamworker.flow.locks import alone

            self._locks = alone(self) if self._locking is None else self._locking.locks(self)
        return self._locks.lock(name, ttl, wait, floor)

    def transaction(self, step: str = "") -> Transaction:
        """A transaction in Postgres that happens once, as `async with ctx.transaction() as tx:`.

        What is written in it, and the requests that `enqueue_in(tx, ...)` adds, commit together with the
        word that this job, or its key, has done it. A later attempt that comes to it leaves the handler,
        and the job succeeds with what `tx.result` was set to. One of them has no name; others of the same
        handler are named steps: a later attempt skips the block of one that is done and goes on behind it,
        with `tx.result`. Raises OperationConflict when the key has done it with other arguments,
        ConfigurationError without a Postgres.
        """
        return self._in_postgres().transaction(step)

    def operation(self, name: str) -> Operation:
        """An effect outside of Postgres, as `async with ctx.operation("charge") as op:`.

        `op.done` says that an earlier attempt did it, with `op.result`; `op.uncertain` that one had begun and
        nobody knows the end. Raises as `transaction`.
        """
        return self._in_postgres().operation(name)

    @property
    def recorded(self) -> Any:
        """What the transaction without a name has recorded in this attempt."""
        return None if self._effects is None else self._effects.result

    def _in_postgres(self) -> Effects:
        if self._effects is None:
            if self._effecting is None:
                raise ConfigurationError(
                    "this context records no effects: give the handler one that runs in a worker, or see "
                    "docs/how-to/effects-once.md for tests"
                )
            if self._stale is None:
                self._stale = set()
            args = Envelope.decode(self._sent).args if self._sent else {}
            self._effects = self._effecting.effects(self, args, self._stale)
        return self._effects

    @property
    def cache(self) -> Cache:
        """The app's cache, as `await ctx.cache.get(f"price:{sku}", load)`; see `Cache.get`.

        A plain function calls `get_sync`. In a context that you made yourself it keeps nothing.
        """
        if self._cache is None:
            from streamworker.flow.cache import Cache

            self._cache = Cache()
        return self._cache

    def invalidate(self, *keys: str) -> None:
        """Have these keys of the cache forgotten once the outcome of this attempt is recorded.

        Whatever the outcome is: what the handler wrote may be there. When the worker dies in between, the old
        values are believed until their time is over. Raises InvalidArgument.
        """
        from streamworker.flow.entries import check_keys

        check_keys(keys)
        if self._stale is None:
            self._stale = set()
        self._stale.update(keys)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry job_id, task, attempt and correlation_id."""
        if self._log is None:
            facts = {
                "job_id": self.job_id,
                "task": self.task,
                "attempt": self.attempt,
                "correlation_id": self.correlation_id,
            }
            self._log = logging.LoggerAdapter(_handler_log, facts)
        return self._log
