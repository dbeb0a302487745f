"""Everything that a namespace holds, read in one step and taken apart into what the tests speak of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from streamworker.core.job import Record
from streamworker.store import events
from streamworker.store.connection import SyncLink
from streamworker.store.events import Transition
from streamworker.store.keys import BACKLOG_SUFFIX, STREAM_SUFFIX, Keys

_SUFFIX = {**STREAM_SUFFIX, "b": BACKLOG_SUFFIX}
_DUMP = """
local reply = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind = redis.call('TYPE', key)['ok']
  local value, pending = false, {}
  if kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'stream' then
    value = redis.call('XRANGE', key, '-', '+')
    local found = redis.pcall('XPENDING', key, 'workers', '-', '+', 100000)
    if not found.err then pending = found end
  end
  reply[#reply + 1] = { key, kind, redis.call('PTTL', key), value, pending }
end
return reply
"""


@dataclass(frozen=True, slots=True)
class Pending:
    """One delivered entry: who has it, for how many ms it was idle, how often it was delivered."""

    consumer: str
    idle_ms: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class Line:
    """One transition of the log."""

    job_id: str
    epoch: int
    version: int
    source: str  # '-' for a job that is new
    target: str
    offset_ms: int
    attempt: int
    fence: int
    reason: str
    details: dict[str, str]
    script: str
    actor: str
    at_ms: int


Fields = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The keys of one shard, named without their hash tag."""

    hashes: dict[str, Fields] = field(default_factory=dict)
    strings: dict[str, bytes] = field(default_factory=dict)
    zsets: dict[str, dict[str, int]] = field(default_factory=dict)
    lists: dict[str, list[bytes]] = field(default_factory=dict)
    sets: dict[str, frozenset[bytes]] = field(default_factory=dict)
    streams: dict[str, dict[str, Fields]] = field(default_factory=dict)
    pending: dict[str, dict[str, Pending]] = field(default_factory=dict)
    #: ms to live of each key, -1 without a TTL.
    ttls: dict[str, int] = field(default_factory=dict)

    def records(self) -> dict[str, Record]:
        """The readable records by job id."""
        found = {}
        for name, raw in self.strings.items():
            if name.startswith("job:"):
                job_id = name.removeprefix("job:")
                try:
                    found[job_id] = Record.parse(job_id, raw)
                except ValueError:
                    continue
        return found

    def record(self, job_id: str) -> Record | None:
        raw = self.strings.get(f"job:{job_id}")
        return None if raw is None else Record.parse(job_id, raw)

    def body(self, job_id: str) -> Fields:
        return self.hashes.get(f"body:{job_id}", {})

    def named_entry(self, record: Record) -> tuple[str, str] | None:
        """Stream and id of the entry that the record honours, whether or not it is there."""
        if record.entry is None:
            return None
        kind, entry = record.entry
        if kind == "t":
            return f"lane:{record.lane}:turn:{record.text('tn')}", entry
        return f"lane:{record.lane}{_SUFFIX[kind]}", entry

    def entry_stands(self, record: Record) -> bool:
        named = self.named_entry(record)
        return named is not None and named[1] in self.streams.get(named[0], {})

    def waiting(self, record: Record) -> dict[str, int]:
        """Who waits in the record's lane at the gate where it is parked: job id to place."""
        return self.zsets.get(f"waiting:{record.lane}:{record.gate}", {})

    def holders(self, gate: str) -> dict[str, int]:
        """Job id to the time of its claim, or to minus its place while the grant is not claimed."""
        return self.zsets.get(f"gate:{gate}", {})

    def holder_of_entry(self, record: Record) -> str | None:
        """Who has the record's entry in the pending list."""
        named = self.named_entry(record)
        found = self.pending.get(named[0], {}).get(named[1]) if named else None
        return found.consumer if found else None

    def lane_streams(self) -> Iterator[tuple[str, str, str]]:
        """(stream, lane, kind) of each lane stream."""
        for name in self.streams:
            if name.startswith("lane:") and ":turn:" not in name:
                lane, _, suffix = name.removeprefix("lane:").partition(":")
                kind = next(kind for kind, tail in _SUFFIX.items() if tail == (suffix and f":{suffix}"))
                yield name, lane, kind

    def stats(self) -> dict[str, int]:
        """The counters that are not zero."""
        return {
            name.decode(): int(value)
            for name, value in self.hashes.get("stats", {}).items()
            if int(value) != 0
        }

    def dead_letters(self) -> dict[str, dict[str, str]]:
        """The dead letters by entry id, without their envelopes."""
        return {
            entry: {name.decode(): value.decode() for name, value in fields.items() if name != b"env"}
            for entry, fields in self.streams.get("dlq", {}).items()
        }

    def lines(self) -> list[Line]:
        """The transition log, oldest first."""
        found = []
        for fields in self.streams.get("events", {}).values():
            found += [_line(move, int(fields[b"t"])) for move in events.decode(fields)]
        return found

    def without_times(self) -> dict[str, Any]:
        """What must be equal after a call that was sent twice: all but idle times and remaining lives."""
        return {
            "hashes": self.hashes,
            "strings": self.strings,
            "zsets": self.zsets,
            "lists": self.lists,
            "sets": self.sets,
            "streams": self.streams,
            "pending": {
                stream: {entry: one.consumer for entry, one in entries.items()}
                for stream, entries in self.pending.items()
            },
            "expires": {name: ttl >= 0 for name, ttl in self.ttls.items()},
        }


def _line(move: Transition, at_ms: int) -> Line:
    return Line(
        move.job_id,
        move.epoch,
        move.version,
        "-" if move.from_status is None else str(move.from_status),
        str(move.to_status),
        move.at_ms - at_ms,
        move.attempt,
        move.fence,
        move.reason,
        dict(move.facts),
        move.script,
        move.worker or "-",
        at_ms,
    )


def _score(text: bytes) -> int:
    return sys.maxsize if text == b"inf" else int(text)


def _pairs(flat: list[bytes]) -> Fields:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def take(link: SyncLink, keys: Keys) -> Snapshot:
    """Read the whole shard in one step."""
    snapshot = Snapshot()
    prefix = f"{keys.tag}:"
    for raw, kind, ttl, value, pending in link.call("EVAL", _DUMP, 0, f"{prefix}*"):
        name = raw.decode().removeprefix(prefix)
        snapshot.ttls[name] = ttl
        match kind:
            case b"hash":
                snapshot.hashes[name] = _pairs(value)
            case b"string":
                snapshot.strings[name] = value
            case b"set":
                snapshot.sets[name] = frozenset(value)
            case b"list":
                snapshot.lists[name] = value
            case b"zset":
                snapshot.zsets[name] = {
                    member.decode(): _score(score)
                    for member, score in zip(value[::2], value[1::2], strict=True)
                }
            case b"stream":
                snapshot.streams[name] = {entry.decode(): _pairs(fields) for entry, fields in value}
                snapshot.pending[name] = {
                    entry.decode(): Pending(consumer.decode(), idle, deliveries)
                    for entry, consumer, idle, deliveries in pending
                }
            case _:
                raise AssertionError(f"{name} has the type {kind!r}, which the catalogue does not know")
    return snapshot
