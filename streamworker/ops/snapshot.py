"""One look at a namespace for metrics: what waits, runs and died, how old it is, who is there.

Costs Redis a few dozen commands whatever waits, so it can be taken each few seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from streamworker.core import durations
from streamworker.core.gates import GateKind
from streamworker.core.job import Record
from streamworker.core.lane import BACKLOG, Pressure
from streamworker.ops import overload
from streamworker.ops.tune import read_pauses
from streamworker.postgres.log import Lag, Log
from streamworker.store import manifest
from streamworker.store.caller import Caller
from streamworker.store.depths import now_ms, oldest_ms
from streamworker.store.events import pairs
from streamworker.store.keys import Keys
from streamworker.store.pressures import FIELD as PRESSURE

#: The state that metrics have for each place of a waiting or running job.
STATES = {
    "queued": "ready",
    "parked": "parked",
    "turned": "parked",
    "scheduled": "scheduled",
    "in_flight": "in_flight",
}
#: Counters of what became of enqueues that are no plain job; their last word is why, of `coalesced` the task.
DECISIONS = ("deferred", "rejected", "coalesced", "duplicate", "conflict")
#: Gates of one lane that are asked for their oldest waiter.
GATES_ASKED = 100


@dataclass(frozen=True, slots=True)
class LaneLook:
    """One lane. Ages in seconds since the enqueue; None: nothing waits."""

    oldest: float | None
    oldest_parked: float | None
    target: float | None  # None: it has none
    pressure: Pressure
    paused: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was seen. Names of tasks, codes and gates are as Redis has them, whoever made them up."""

    at: float  # seconds since the epoch, by Redis's clock
    tasks: frozenset[str]  # those of the manifest
    gates: frozenset[str]  # what declared gates are about
    lanes: Mapping[str, LaneLook]
    jobs: Mapping[tuple[str, str, str], int]  # by lane, task and state
    enqueued: Mapping[tuple[str, str], int]  # by lane and task
    admissions: Mapping[tuple[str, str, str], int]  # by lane, decision and reason
    drained: Mapping[str, int]  # by task
    draining: bool  # whether the drain is on
    recovered: Mapping[tuple[str, str], int]  # by lane and task
    contended: Mapping[tuple[str, str], int]  # by lane and task
    dead_lettered: Mapping[tuple[str, str], int]  # by task and code
    replayed: Mapping[str, int]  # by task
    waiting: Mapping[str, int]  # by gate
    buckets: Mapping[str, tuple[float, int]]  # tokens and capacity, by limiter
    workers: int
    lag: Lag | None = field(default=None)  # of the mirror; None: none is on


async def take(caller: Caller, keys: Keys) -> Snapshot:
    """Look now. Raises ConnectionLost, ServerUnsuitable or ReplyError."""
    command = caller.command
    stats, depths, policies, meta, waiting, pauses, now = await asyncio.gather(
        command("HGETALL", keys.stats),
        command("HGETALL", keys.depths),
        command("HGETALL", keys.policies),
        command("HGETALL", keys.meta),
        command("HGETALL", keys.waiting),
        command("GET", keys.pauses),
        now_ms(command),
    )
    counters, places = _numbers(stats), _numbers(depths)
    settings, declared = _texts(policies), pairs(meta)
    gates = _waiting(_texts(waiting))
    paused = {one.scope for one in read_pauses((pauses or b"").decode()) if one.state == "paused"}
    names, about = _tasks(declared)
    workers, served = await _workers(caller, keys)
    targets = _targets(declared)
    lanes = {}
    for lane in sorted(targets.keys() | served):
        lanes[lane] = LaneLook(
            _seconds(await oldest_ms(command, keys, lane, now)),
            _seconds(await _oldest_parked(caller, keys, lane, gates, now)),
            targets.get(lane),
            _pressure(settings.get(PRESSURE + lane)),
            f"lane:{lane}" in paused,
        )
    deferred = await overload.backlog(caller, keys)
    oldest = max((age for _, age in deferred.values() if age is not None), default=None)
    meant = settings.get("declared:backlog_target", "")  # no worker serves it, so it is not among the lanes
    target = int(meant) / 1000 if meant.isdecimal() else None
    lanes[BACKLOG] = LaneLook(_seconds(oldest), None, target, Pressure.OK, f"lane:{BACKLOG}" in paused)
    mirrored = settings.get("mirror", "off") != "off"
    return Snapshot(
        at=now / 1000,
        tasks=names,
        gates=about,
        lanes=lanes,
        jobs=_jobs(counters, places),
        enqueued=_by_two(counters, "enqueued"),
        admissions=_admissions(counters),
        drained=_by_task(counters, "drained"),
        draining=not settings.get("drain", "on").startswith("off") and f"lane:{BACKLOG}" not in paused,
        recovered=_by_two(counters, "recovered"),
        contended=_by_two(counters, "contended"),
        dead_lettered=_by_two(counters, "dead_of"),
        replayed=_by_task(counters, "replayed"),
        waiting={gate: sum(of.values()) for gate, of in gates.items()},
        buckets=await _buckets(caller, keys, settings, now),
        workers=workers,
        lag=await Log(caller, keys).lag() if mirrored else None,
    )


def _numbers(flat: list[bytes]) -> dict[str, int]:
    return {name.decode("utf-8", "replace"): int(value) for name, value in pairs(flat).items()}


def _texts(flat: list[bytes]) -> dict[str, str]:
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in pairs(flat).items()
    }


def _seconds(age_ms: int | None) -> float | None:
    return None if age_ms is None else age_ms / 1000


def _pressure(value: str | None) -> Pressure:
    return Pressure(value) if value in list(Pressure) else Pressure.OK


# --- what the manifest says


def _tasks(declared: Mapping[bytes, bytes]) -> tuple[frozenset[str], frozenset[str]]:
    """The tasks, and what their gates are about."""
    names, about = set(), set()
    for name, value in declared.items():
        kind, colon, task = name.decode("utf-8", "replace").partition(":")
        if f"{kind}{colon}" == manifest.FIELD:
            names.add(task)
            found = manifest.read(task, value)
            if found is not None and found.ready is not None:
                about.update(found.ready.about())
    return frozenset(names), frozenset(about)


def _targets(declared: Mapping[bytes, bytes]) -> dict[str, float | None]:
    """The lanes that the apps have, with their targets in seconds."""
    router = manifest.read_router(declared.get(manifest.ROUTING.encode()))
    if router is None:
        return {}
    return {
        name: None if lane.target is None else durations.parse(lane.target)
        for name, lane in router.lanes.items()
    }


# --- counters


def _by_two(counters: Mapping[str, int], name: str) -> dict[tuple[str, str], int]:
    """The counters `name:one:other`. No lane and no code has a colon, and no task."""
    found: Counter[tuple[str, str]] = Counter()
    for counter, count in counters.items():
        kind, _, rest = counter.partition(":")
        if kind == name:
            one, _, other = rest.partition(":")
            found[one, other] += count
    return dict(found)


def _jobs(counters: Mapping[str, int], places: Mapping[str, int]) -> dict[tuple[str, str, str], int]:
    """Jobs by lane, task and state. What was enqueued was queued first; what died is dead until an operator
    lets it run again or discards it, and again once its letter is imported."""
    found: Counter[tuple[str, str, str]] = Counter()
    for (lane, task), count in _by_two(counters, "enqueued").items():
        found[lane, task, "ready"] += count
    for name, change in places.items():
        place, _, rest = name.partition(":")
        lane, _, task = rest.partition(":")
        if place in STATES:
            found[lane, task, STATES[place]] += change
        elif place == BACKLOG:  # the lane that it is meant for is not where it waits
            found[BACKLOG, task, "ready"] += change
    for name, sign in (("dead", 1), ("imported", 1), ("replayed", -1), ("discarded", -1), ("trimmed", -1)):
        for (lane, task), count in _by_two(counters, name).items():
            found[lane, task, "dead"] += sign * count
    return dict(found)


def _by_task(counters: Mapping[str, int], name: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (_, task), count in _by_two(counters, name).items():
        found[task] += count
    return dict(found)


def _admissions(counters: Mapping[str, int]) -> dict[tuple[str, str, str], int]:
    """What became of enqueues, by lane, decision and reason."""
    found: Counter[tuple[str, str, str]] = Counter()
    for (lane, _), count in _by_two(counters, "enqueued").items():
        found[lane, "accepted", ""] += count
    for decision in DECISIONS:
        for (lane, word), count in _by_two(counters, decision).items():
            found[lane, decision, "" if decision == "coalesced" else word] += count
            if decision == "deferred":
                found[lane, "accepted", ""] -= count
    return dict(found)


# --- gates


def _waiting(texts: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """How many wait at each gate, by lane."""
    found = {}
    for gate, text in texts.items():
        words = text.split()
        found[gate] = {lane: int(count) for lane, count in zip(words[::2], words[1::2], strict=False)}
    return found


async def _oldest_parked(
    caller: Caller, keys: Keys, lane: str, gates: Mapping[str, Mapping[str, int]], now: int
) -> int | None:
    """The age of the job that came first of those that wait at gates; of many gates, of those looked at."""
    asked = [gate for gate, lanes in gates.items() if lanes.get(lane)][:GATES_ASKED]
    firsts = await asyncio.gather(
        *(caller.command("ZRANGE", keys.waiters(lane, gate), 0, 0, "WITHSCORES") for gate in asked)
    )
    waiters = [(float(first[1]), first[0].decode()) for first in firsts if first]
    if not waiters:
        return None
    _, job_id = min(waiters)
    raw = await caller.command("GET", keys.job(job_id))
    try:
        at = None if raw is None else Record.parse(job_id, raw).number("at")
    except ValueError:  # unreadable: a claim will bury it
        return None
    return None if at is None else max(0, now - at)


async def _buckets(
    caller: Caller, keys: Keys, settings: Mapping[str, str], now: int
) -> dict[str, tuple[float, int]]:
    """Tokens and capacity of the rates that have one bucket: those of a task or a dependency."""
    found = {}
    for name, declared in settings.items():
        limit = name.removeprefix("declared:")
        if limit == name or not limit.startswith(f"{GateKind.RATE}:") or "@" in limit:
            continue
        tokens, period, burst = map(int, settings.get(f"limit:{limit}", declared).split(","))
        left = float(burst)
        raw = await caller.command("GET", keys.bucket(limit))
        if raw is not None:
            level, at, unit = map(int, raw.split())
            left = min(left, level / unit + max(0, now - at) * tokens / period)
        found[limit.removeprefix(f"{GateKind.RATE}:")] = (left, burst)
    return found


# --- workers


async def _workers(caller: Caller, keys: Keys) -> tuple[int, set[str]]:
    """How many workers live, and the lanes that they serve."""
    ids = [name.decode() for name in await caller.command("HKEYS", keys.workers)]
    served = await asyncio.gather(*(caller.command("HGET", keys.worker(each), "lanes") for each in ids))
    return sum(each is not None for each in served), _lanes_of(served)


def _lanes_of(served: Iterable[bytes | None]) -> set[str]:
    return {lane for each in served if each for lane in each.decode().split(",") if lane}
