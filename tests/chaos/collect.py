"""Reads what Redis holds when a run is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from streamworker.core.job import Record
from streamworker.store.keys import GROUP, STREAM_SUFFIX, Keys, is_live_state
from tests.chaos.history import Final

#: Keys or ids that one pipeline asks for.
_BATCH = 1000
#: Counters of `stats` that say what is open.
_DEPTHS = ("queued", "scheduled", "in_flight", "parked", "turned", "backlog")


class FinalReader:
    """Reads the end of each run of one namespace; dead letters that it has seen before are not told again."""

    def __init__(self, client: Any, keys: Keys, lanes: Collection[str]) -> None:
        self._redis = client
        self._keys = keys
        self._lanes = lanes
        self._letter = "-"

    def read(self, job_ids: Iterable[str]) -> Final:
        """What there is now; records of these jobs only."""
        return Final(
            streams=dict(self._streams()),
            waiting=dict(self._waiting()),
            counters=self.counters(),
            immortal=list(self._immortal()),
            records=self._records(job_ids),
            dead_letters=self._dead_letters(),
        )

    def counters(self) -> dict[str, int]:
        """The counters of what is open that are not zero."""
        stats = self._redis.hgetall(self._keys.stats)
        found = {name.decode(): int(value) for name, value in stats.items()}
        return {name: value for name, value in found.items() if name.partition(":")[0] in _DEPTHS and value}

    def _streams(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for lane in self._lanes:
            for kind in (*STREAM_SUFFIX, "b"):
                stream = self._keys.stream(lane, kind)
                if not self._redis.exists(stream):
                    continue
                grouped = bool(self._redis.xinfo_groups(stream))
                pending = int(self._redis.xpending(stream, GROUP)["pending"]) if grouped else 0
                yield stream, (int(self._redis.xlen(stream)), pending)

        for raw in self._redis.scan_iter(match=f"{self._keys.tag}:lane:*:turn:*", count=_BATCH):
            yield raw.decode("utf-8", "backslashreplace"), (int(self._redis.xlen(raw)), 0)

    def _waiting(self) -> Iterator[tuple[str, int]]:
        for name in (self._keys.schedule, self._keys.deadlines):
            yield name, int(self._redis.zcard(name))
        yield from self.at_gates()
        for kind in ("gate", "waiting"):
            for raw in self._redis.scan_iter(match=f"{self._keys.tag}:{kind}:*", count=_BATCH, _type="zset"):
                yield raw.decode("utf-8", "backslashreplace"), int(self._redis.zcard(raw))

    def at_gates(self) -> Iterator[tuple[str, int]]:
        """How many timers there are, gates with waiters, lanes with a tenant's jobs, and pauses."""
        yield self._keys.timers, int(self._redis.zcard(self._keys.timers))
        yield self._keys.waiting, int(self._redis.hlen(self._keys.waiting))
        yield self._keys.turnstile, int(self._redis.hlen(self._keys.turnstile))
        yield self._keys.pauses, int(self._redis.exists(self._keys.pauses))

    def _immortal(self) -> Iterator[str]:
        """What has no TTL and is either of one job, none of which is open, or no live state at all."""
        per_job = (self._keys.job(""), self._keys.body(""), self._keys.key(""))
        names = iter(self._redis.scan_iter(match=f"{self._keys.tag}:*", count=_BATCH))
        while batch := list(islice(names, _BATCH)):
            asked = []
            for raw in batch:
                name = raw.decode("utf-8", "backslashreplace")
                if name.startswith(per_job) or not is_live_state(name):
                    asked.append((raw, name))
            pipeline = self._redis.pipeline(transaction=False)
            for raw, _ in asked:
                pipeline.ttl(raw)
            for (_, name), ttl in zip(asked, pipeline.execute(), strict=True):
                if ttl == -1:
                    yield name

    def _records(self, job_ids: Iterable[str]) -> dict[str, Record]:
        found = {}
        ids = iter(job_ids)
        while batch := list(islice(ids, _BATCH)):
            raws = self._redis.mget([self._keys.job(job_id) for job_id in batch])
            found.update(
                {
                    job_id: Record.parse(job_id, raw)
                    for job_id, raw in zip(batch, raws, strict=True)
                    if raw is not None
                }
            )
        return found

    def _dead_letters(self) -> Sequence[str]:
        found = []
        while page := self._redis.xrange(self._keys.dlq, self._letter, "+", _BATCH):
            found += [fields[b"id"].decode() for _, fields in page]
            self._letter = f"({page[-1][0].decode()}"
        return found
