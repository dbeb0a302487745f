"""Effects while Postgres is away: no connection is lost to a lane, and no job is judged blindly."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from streamworker import ConnectionLost
from streamworker.core.job import Claim, Envelope
from streamworker.core.outcome import Retry
from streamworker.core.states import Reason
from streamworker.effects import attempt as attempt_module
from streamworker.effects import connections as module
from streamworker.effects.attempt import Effecting
from streamworker.effects.connections import Connections
from streamworker.effects.transaction import Transaction
from streamworker.postgres.connection import PostgresUnavailable
from streamworker.settings import Settings
from streamworker.worker import burial


class Fake:
    """A connection that fails where it is told to."""

    def __init__(self, *, in_transaction: bool = False, broken: bool = False) -> None:
        self.in_transaction, self.broken = in_transaction, broken
        self.terminated = False

    def is_closed(self) -> bool:
        return self.terminated

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def terminate(self) -> None:
        self.terminated = True

    async def execute(self, query: str) -> None:
        if self.broken:
            raise ConnectionError("gone")


class Pool:
    """One lane's own connection and one more, from a server that gives what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gives: Fake | None = None
        monkeypatch.setattr(module, "connect", self._connect)
        self.connections = Connections("postgresql://x", ["normal"], 2)

    async def _connect(self, dsn: str) -> Any:
        if self.gives is None:
            raise PostgresUnavailable("connection", "away")
        return self.gives

    async def all_can_be_had(self) -> None:
        self.gives = Fake()
        async with asyncio.timeout(1):
            for _ in range(2):
                await self.connections.borrow("normal")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    return Pool(monkeypatch)


async def test_a_postgres_that_was_away_takes_no_connection_from_a_lane(pool: Pool) -> None:
    """Else its handlers would wait for one for ever, once it is back."""
    async with asyncio.timeout(1):
        for _ in range(3):
            with pytest.raises(PostgresUnavailable):
                await pool.connections.borrow("normal")

    await pool.all_can_be_had()


async def test_a_connection_that_cannot_be_cleaned_is_not_used_again_and_leaves_its_place(pool: Pool) -> None:
    broken = pool.gives = Fake(broken=True)
    borrowed = await pool.connections.borrow("normal")

    pool.connections.hand_back(borrowed, sound=True, used=True)
    await asyncio.gather(*pool.connections._cleaning)

    assert broken.terminated
    await pool.all_can_be_had()


async def test_a_connection_that_is_left_in_a_transaction_is_not_used_again(pool: Pool) -> None:
    left = pool.gives = Fake(in_transaction=True)

    pool.connections.hand_back(await pool.connections.borrow("normal"), sound=True)

    assert left.terminated
    await pool.all_can_be_had()


async def test_that_a_task_has_effects_is_told_again_after_a_lease_and_until_redis_has_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D14: Redis may have lost it, and would bury a job without a look for its effect."""
    now, told, away = 100.0, list[tuple[Any, ...]](), True

    async def command(*words: Any) -> None:
        told.append(words)
        if away:
            raise ConnectionLost("away")

    monkeypatch.setattr(attempt_module, "time", SimpleNamespace(monotonic=lambda: now))
    queue = SimpleNamespace(caller=SimpleNamespace(command=command), keys=SimpleNamespace(policies="p"))
    effecting = Effecting(
        Settings("x", lease=30.0), lambda: cast(Any, queue), lambda _: None, lanes=[], size=1
    )

    with pytest.raises(ConnectionLost):
        await effecting.announce("pay")
    away = False
    for at in (100.0, 129.0, 131.0):
        now = at
        await effecting.announce("pay")

    assert told == [("HSET", "p", "effects:pay", 1)] * 3


def to_be_buried() -> Claim:
    return Claim(
        "j", 7, 1, 1, 0, 0, "normal", "r", "1-0", 0, None, None, b"", bury=True, cause="error unknown x"
    )


async def test_who_does_not_know_a_task_does_not_say_that_its_job_had_no_effect() -> None:
    """A key stands within its entity, which only its declaration tells: the look would be elsewhere."""
    outcome, _ = await burial.look(
        cast(Effecting, SimpleNamespace()), to_be_buried(), Envelope("pay", {}, key="k"), {}
    )

    assert isinstance(outcome, Retry)
    assert outcome.reason is Reason.BURIAL_WAITS


async def test_a_fault_of_ours_is_not_taken_for_a_postgres_that_is_away() -> None:
    def connection(lane: str) -> NoReturn:
        raise LookupError("a fault of ours")

    effecting = SimpleNamespace(subject=lambda *_: None, connections=SimpleNamespace(connection=connection))

    with pytest.raises(LookupError):
        await burial.look(cast(Effecting, effecting), to_be_buried(), Envelope("pay", {}), {})


async def test_a_transaction_that_does_not_begin_keeps_no_other_from_beginning() -> None:
    """A handler that catches the error and tries again was told of a transaction within a transaction."""
    inside = list[str]()

    async def announce() -> NoReturn:
        raise ConnectionLost("away")

    effects = SimpleNamespace(enter=inside.append, leave=inside.clear, announce=announce)
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            await Transaction(cast(Any, effects), "reserve").__aenter__()
        assert inside == []
