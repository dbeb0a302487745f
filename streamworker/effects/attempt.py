"""The effects of one attempt: whose they are, what was begun, and how they reach Postgres."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from streamworker.core import codec
from streamworker.core.errors import ConfigurationError
from streamworker.core.gates import Gates
from streamworker.effects.connections import Connections
from streamworker.effects.operations import Subject
from streamworker.settings import Settings
from streamworker.store.keys import EFFECTS

if TYPE_CHECKING:
    from streamworker.effects.operation import Operation
    from streamworker.effects.transaction import Transaction
    from streamworker.store.queue import Queue

#: A transaction that says nothing for so long is ended by Postgres, at least (seconds): its handler is
#: frozen, and the next attempt waits for it.
SHORTEST_SILENCE = 2.0


class Attempt(Protocol):
    """Whose effects they are."""

    @property
    def job_id(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def task(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def lane(self) -> str: ...


class Effecting:
    """Makes the effects of a process's attempts. In one event loop; connects when the first is asked for."""

    def __init__(
        self,
        settings: Settings,
        queue: Callable[[], Queue],
        gates_of: Callable[[str], Gates | None],
        *,
        lanes: Iterable[str],
        size: int,
    ) -> None:
        """`size`: connections at most, about; see `Connections`."""
        self.settings = settings
        self._queue = queue
        self._gates_of = gates_of
        self._lanes = tuple(lanes)
        self._size = size
        self._connections: Connections | None = None
        self._announced: dict[str, float] = {}

    @property
    def connections(self) -> Connections:
        """Raises ConfigurationError where no Postgres is named."""
        if self._connections is None:
            if self.settings.postgres_dsn is None:
                raise ConfigurationError(
                    "effects are recorded in Postgres: say where it is with App(postgres_dsn=...) or "
                    "STREAMWORKER_POSTGRES_DSN"
                )
            self._connections = Connections(self.settings.postgres_dsn, self._lanes, self._size)
        return self._connections

    @property
    def in_use(self) -> bool:
        """Whether any attempt has begun an effect since the start, or was looked for one."""
        return self._connections is not None

    def subject(self, task: str, key: str, job_id: str, args: Mapping[str, Any]) -> Subject:
        """Whose effect it is: the same for all attempts, and for all jobs of one key."""
        gates = self._gates_of(task) if key != job_id else None
        entity = "" if gates is None else gates.entity(args)
        return Subject(self.settings.namespace, task, f"{entity}:{key}" if entity else key)

    async def announce(self, task: str) -> None:
        """Let Redis know that this task commits effects, before it does, and again after a lease: it may have
        lost what it knew. Raises ConnectionLost."""
        now = time.monotonic()
        if now < self._announced.get(task, 0.0):
            return
        queue = self._queue()
        await queue.caller.command("HSET", queue.keys.policies, EFFECTS + task, 1)
        self._announced[task] = now + self.settings.lease

    def effects(self, attempt: Attempt, args: Mapping[str, Any], stale: set[str]) -> Effects:
        """`stale`: cached values that are to be dropped once the job has its outcome."""
        return Effects(self, attempt, args, stale)

    async def close(self) -> None:
        if self._connections is not None:
            await self._connections.close()
            self._connections = None


class Effects:
    """What one attempt has begun."""

    def __init__(
        self, effecting: Effecting, attempt: Attempt, args: Mapping[str, Any], stale: set[str]
    ) -> None:
        self._effecting = effecting
        self._attempt = attempt
        self.stale = stale
        self._begun: set[str] = set()
        self._inside = False
        #: What the transaction without a name has recorded.
        self.result: Any = None
        self.subject = effecting.subject(attempt.task, attempt.key, attempt.job_id, args)
        self.fingerprint = codec.fingerprint(args)
        self.connections = effecting.connections

    @property
    def job_id(self) -> str:
        return self._attempt.job_id

    @property
    def fence(self) -> int:
        return self._attempt.fence

    @property
    def lane(self) -> str:
        return self._attempt.lane

    @property
    def key(self) -> str:
        return self._attempt.key

    @property
    def silence_ms(self) -> int:
        return round(max(SHORTEST_SILENCE, self._effecting.settings.lease) * 1000)

    def transaction(self, step: str) -> Transaction:
        """Raises ConfigurationError for a name that this attempt has used."""
        from streamworker.effects.transaction import Transaction

        self._begin(step, "transaction")
        return Transaction(self, step)

    def operation(self, name: str) -> Operation:
        """Raises ConfigurationError for a name that this attempt has used, or none."""
        from streamworker.effects.operation import Operation

        if not name:
            raise ConfigurationError('an operation has a name, such as ctx.operation("charge")', lasting=True)
        self._begin(name, "operation")
        return Operation(self, name)

    def _begin(self, step: str, what: str) -> None:
        if step in self._begun:
            name = f"the name {step!r}" if step else "no name"
            raise ConfigurationError(
                f"task {self._attempt.task}: a second {what} with {name} in one handler; each step has a "
                f'name of its own, such as ctx.{what}("reserve")',
                lasting=True,
            )
        self._begun.add(step)

    def enter(self, step: str) -> None:
        """A transaction begins."""
        if self._inside:
            raise ConfigurationError(
                f"task {self._attempt.task}: a transaction within a transaction; use "
                "tx.connection.transaction() for a savepoint",
                lasting=True,
            )
        self._inside = True

    def leave(self) -> None:
        """It is over."""
        self._inside = False

    async def announce(self) -> None:
        await self._effecting.announce(self._attempt.task)
