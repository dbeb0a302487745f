"""Everything that Redis holds of a shard, read in one step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from streamworker.core.job import Record
from streamworker.store.events import Transition, decode, pairs
from streamworker.store.keys import BACKLOG_SUFFIX, STREAM_SUFFIX
from tests.lua.snapshot import Snapshot

#: ARGV: the keys' common beginning; the last entry of the log that was read before, or '-'.
LOOK = """
local seen = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local kind = redis.call('TYPE', key)['ok']
  local value, pending, last = false, {}, false
  if kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif key == ARGV[1] .. 'events' then value = redis.call('XRANGE', key, ARGV[2], '+')
  else
    value = redis.call('XRANGE', key, '-', '+')
    local group = redis.call('XINFO', 'GROUPS', key)[1]
    if group then
      for i = 1, #group, 2 do if group[i] == 'last-delivered-id' then last = group[i + 1] end end
      pending = redis.call('XPENDING', key, 'workers', '-', '+', 10000)
    end
  end
  seen[#seen + 1] = { key, redis.call('PTTL', key), value, pending, last }
end
return seen
"""


@dataclass(slots=True)
class SeenStream:
    entries: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    idle_ms: dict[str, int] = field(default_factory=dict)
    last: str | None = None  # None: no group


@dataclass(slots=True)
class Seen:
    """Keys by their names without the hash tag; those that nobody asked for stay in `others`."""

    records: dict[str, Record] = field(default_factory=dict)
    bodies: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    schedule: dict[str, int] = field(default_factory=dict)
    deadlines: dict[str, int] = field(default_factory=dict)
    streams: dict[tuple[str, str], SeenStream] = field(default_factory=dict)
    letters: dict[str, dict[str, str]] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    #: Entries behind turnstiles, by lane and tenant.
    turns: dict[tuple[str, str], dict[str, dict[bytes, bytes]]] = field(default_factory=dict)
    #: Keys of gates and turnstiles, as `gate_invariants` takes them.
    kept: Snapshot = field(default_factory=Snapshot)
    pauses: str = ""
    locks: dict[str, str] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    #: ms to live, -1 without a TTL.
    ttls: dict[str, int] = field(default_factory=dict)
    #: New lines of the log, and its last entry.
    lines: list[Transition] = field(default_factory=list)
    read_to: str = "-"

    def stream(self, lane: str, kind: str) -> SeenStream:
        return self.streams.get((lane, kind)) or SeenStream()


#: Most records are as they were a step ago.
_record = lru_cache(maxsize=1000)(Record.parse)
_KIND_OF = {suffix.removeprefix(":"): kind for kind, suffix in STREAM_SUFFIX.items()}
_KIND_OF[BACKLOG_SUFFIX.removeprefix(":")] = "b"


def parse(reply: Any, prefix: str, read_to: str) -> Seen:
    """From the reply of LOOK."""
    seen = Seen(read_to=read_to)
    for raw, ttl, value, pending, last in reply:
        name = raw.decode().removeprefix(prefix)
        seen.ttls[name] = ttl
        family, _, rest = name.partition(":")
        match family:
            case "job":
                seen.records[rest] = _record(rest, value)
            case "body":
                seen.bodies[rest] = pairs(value)
            case "key":
                seen.keys[rest] = value.decode()
            case "schedule" | "deadlines":
                times = {one.decode(): int(time) for one, time in _two(value)}
                setattr(seen, family, times)
            case "lane":
                lane, _, suffix = rest.partition(":")
                if suffix.startswith("turn:"):
                    turned = _stream(value, pending, last).entries
                    seen.turns[lane, suffix.removeprefix("turn:")] = seen.kept.streams[name] = turned
                    continue
                seen.streams[lane, _KIND_OF[suffix]] = _stream(value, pending, last)
            case "dlq":
                seen.letters = {entry.decode(): _texts(fields) for entry, fields in value}
            case "gate" | "timers":
                seen.kept.zsets[name] = _scores(value)
            case "waiting" if rest:
                seen.kept.zsets[name] = _scores(value)
            case "waiting" | "turnstile":
                seen.kept.hashes[name] = pairs(value)
            case "pauses":
                seen.pauses = value.decode()
            case "lock":
                seen.locks[rest] = value.decode()
            case "stats":
                seen.stats = {one.decode(): int(count) for one, count in _two(value)}
            case "events":
                for entry, fields in value:
                    seen.lines.extend(decode(pairs(fields)))
                    seen.read_to = f"({entry.decode()}"
            case _:
                seen.others[name] = value
    return seen


def _stream(value: Any, pending: Any, last: bytes | None) -> SeenStream:
    stream = SeenStream(last=last.decode() if last else None)
    stream.entries = {entry.decode(): pairs(fields) for entry, fields in value}
    for entry, consumer, idle, _ in pending:
        stream.pending[entry.decode()] = consumer.decode()
        stream.idle_ms[entry.decode()] = idle
    return stream


def _scores(flat: list[bytes]) -> dict[str, int]:
    return {one.decode(): sys.maxsize if at == b"inf" else int(at) for one, at in _two(flat)}


def _texts(flat: list[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in pairs(flat).items()}


def _two(flat: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
