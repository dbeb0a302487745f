"""Compares what Redis and Postgres say of the same jobs.

Both move on while they are compared: what differs at first is looked at again once the mirror has read all
that was logged until then, and only what still differs is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamworker.core.job import Record
from streamworker.core.states import TERMINAL
from streamworker.postgres.adopt import UNSEEN
from streamworker.postgres.census import PAGE, Census
from streamworker.postgres.letters import hollow
from streamworker.postgres.log import Lag, Log
from streamworker.postgres.reconcile import OPEN_JOBS
from streamworker.store.caller import Caller
from streamworker.store.keys import Keys

if TYPE_CHECKING:
    import asyncpg

#: Seconds between two looks whether the mirror has come along.
LOOK_EVERY = 0.1
STATES = "SELECT id::text, status, epoch, version FROM streamworker.jobs WHERE id = ANY($1::uuid[])"
ASIDE = f"""
SELECT (SELECT count(*) FROM streamworker.mirror_conflicts WHERE namespace = $1 AND shard = $2) AS conflicts,
       (SELECT count(*) FROM streamworker.mirror_refused WHERE namespace = $1 AND shard = $2) AS refused,
       (SELECT count(*) FROM streamworker.jobs WHERE namespace = $1 AND shard = $2 AND payload IS NULL
        AND status NOT IN ('succeeded', 'failed_terminal')) AS without_payload,
       (SELECT count(*) FROM streamworker.jobs WHERE namespace = $1 AND shard = $2 AND reason = '{UNSEEN}'
        AND status NOT IN ('succeeded', 'failed_terminal')) AS unseen
"""  # noqa: S608
State = tuple[str, int, int]  # status, epoch, version


@dataclass(frozen=True, slots=True)
class Difference:
    """One job of which the two sides say different things; None: that side does not know it."""

    job_id: str
    redis: State | None
    postgres: State | None

    @property
    def sides(self) -> tuple[State | None, State | None]:
        return self.redis, self.postgres

    def json(self) -> dict[str, Any]:
        return {"id": self.job_id, "redis": _shown(self.redis), "postgres": _shown(self.postgres)}


@dataclass(slots=True)
class Verified:
    """What a comparison found."""

    compared: int = 0
    differences: list[Difference] = field(default_factory=list)
    #: Whether the mirror read all that was logged before the comparison, in time.
    caught_up: bool = True
    lag: Lag | None = None
    conflicts: int = 0
    refused: int = 0
    #: Open jobs that could not be restored, from before the mirror was on.
    without_payload: int = 0
    #: Dead letters that would come back without what they were called with.
    letters_without_payload: int = 0
    #: Jobs that ended, or were lost, while the mirror was not on: nobody knows their end, and they stay so.
    unseen: int = 0

    @property
    def good(self) -> bool:
        return self.caught_up and not self.differences

    def json(self) -> dict[str, Any]:
        """`mirror verify --json`."""
        return {
            "good": self.good,
            "compared": self.compared,
            "differences": [each.json() for each in self.differences],
            "caught_up": self.caught_up,
            "lag_events": None if self.lag is None else self.lag.entries,
            "conflicts": self.conflicts,
            "refused": self.refused,
            "without_payload": self.without_payload,
            "letters_without_payload": self.letters_without_payload,
            "unseen": self.unseen,
        }


def _shown(state: State | None) -> dict[str, Any] | None:
    return None if state is None else dict(zip(("status", "epoch", "version"), state, strict=True))


class Verifier:
    """One shard. Reads only."""

    def __init__(self, connection: asyncpg.Connection, caller: Caller, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._census = Census(caller, keys)
        self._log = Log(caller, keys)

    async def run(self, *, patience: float = 30.0) -> Verified:
        """Compare all jobs that Redis has, and all that Postgres has as open."""
        found = Verified()
        suspects: list[str] = []
        async for ids in self._all():
            found.compared += len(ids)
            suspects += [each.job_id for each in await self._compare(ids)]
        if suspects:
            found.caught_up = await self._wait(await self._log.last_id(), patience)
            for start in range(0, len(suspects), PAGE):
                found.differences += await self._compare(suspects[start : start + PAGE])
        found.lag = await self._log.lag()
        row = await self._connection.fetchrow(ASIDE, self._keys.namespace, self._keys.shard)
        assert row is not None
        found.conflicts, found.refused, found.without_payload, found.unseen = row
        found.letters_without_payload = await hollow(self._connection, self._keys)
        return found

    async def _all(self) -> AsyncIterator[list[str]]:
        """The ids of Redis, then those that Postgres has as open; some come twice."""
        async for ids in self._census.all():
            yield ids
        async for ids in self._census.stored(self._connection, OPEN_JOBS):
            yield ids

    async def _compare(self, ids: Sequence[str]) -> list[Difference]:
        records = await self._census.raw(ids)
        rows = {
            job_id: (status, epoch, version)
            for job_id, status, epoch, version in await self._connection.fetch(STATES, list(ids))
        }
        different = []
        for job_id, raw in zip(ids, records, strict=True):
            here, there = _state(job_id, raw), rows.get(job_id)
            if here == there or (here is None and there is not None and there[0] in TERMINAL):
                continue  # one that is over may have expired in Redis
            if here is None and there is not None and there[2] == 0:
                continue  # it waits in the outbox
            different.append(Difference(job_id, here, there))
        return different

    async def _wait(self, last: str, patience: float) -> bool:
        """Whether the mirror has read the log up to that entry, within `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                while not await self._log.read_up_to(last):  # noqa: ASYNC110 - another process reads it
                    await asyncio.sleep(LOOK_EVERY)
        except TimeoutError:
            return False
        return True


def _state(job_id: str, raw: bytes | None) -> State | None:
    if raw is None:
        return None
    try:
        record = Record.parse(job_id, raw)
    except ValueError:
        return ("unreadable", -1, -1)
    return (record.status.value, record.epoch, record.version)
