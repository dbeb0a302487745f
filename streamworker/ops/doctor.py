"""Is all well with a server and a namespace on it? Each check says what it found and what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from streamworker.core import durations
from streamworker.core.job import Record
from streamworker.core.lane import BACKLOG
from streamworker.core.text import counted
from streamworker.ops import (
    fleet_checks,
    gate_checks,
    inspect,
    lane_checks,
    leak_checks,
    sentinel_checks,
    server_checks,
    tune,
)
from streamworker.ops.checks import Finding, Severity, ok, problem, warning
from streamworker.ops.known import lanes as declared_lanes
from streamworker.ops.mirror_checks import mirror
from streamworker.ops.outbox_checks import outbox
from streamworker.store.connection import ReplyError
from streamworker.store.events import pairs
from streamworker.store.keys import GROUP, STREAM_SUFFIX
from streamworker.store.queue import Queue
from streamworker.store.scripts import Call
from streamworker.store.server import SCHEMA, SHARDS

#: Records that are read to look for some that cannot be read.
SAMPLE = 2_000
SCAN_COUNT = 500
#: Milliseconds that a due job may wait for a keeper, beyond a lease.
OVERDUE_MS = 5_000
#: Ids that a finding names.
NAMED = 3


@dataclass(frozen=True, slots=True)
class Depths:
    """Counters and streams of one moment: read in one transaction, so that they fit together."""

    stats: dict[str, int]
    #: Entries, and those of them that are delivered, by lane and kind of stream.
    streams: dict[tuple[str, str], tuple[int, int]]
    scheduled: int
    next_due_ms: int | None
    dead_letters: int
    now_ms: int

    def entries(self, lane: str) -> int:
        """Entries of all of a lane's streams."""
        return sum(self.streams[lane, kind][0] for kind in STREAM_SUFFIX)

    def delivered(self, lane: str) -> int:
        """Those that some worker has."""
        return sum(self.streams[lane, kind][1] for kind in STREAM_SUFFIX)


async def examine(
    queue: Queue, *, lanes: Collection[str] = (), oddities: Sequence[str] | None = None
) -> list[Finding]:
    """All findings, in the order of the checks.

    `lanes` are those of an app, and `oddities` what its declarations warn of (None: no app is known). Raises
    ConnectionLost when there is no server, or ServerUnsuitable for a refused password.
    """
    found = await server_checks.check(queue)
    found += await sentinel_checks.check(queue.settings.redis_url)
    alive = await inspect.workers(queue)
    found.append(await namespace(queue, bool(alive)))
    if oddities is not None:
        found += tasks(oddities)
    known = {*lanes, *(row["lane"] for row in await inspect.lanes(queue))} - {BACKLOG}
    depths = await read_depths(queue, sorted(known))
    served = {lane for worker in alive for lane in worker["lanes"]}
    gone = lane_checks.gone(depths.stats, await declared_lanes(queue), served)
    found += [
        workers(depths, sorted(known - gone), alive),
        *lane_checks.left(depths.stats, gone),
        schedule(queue, depths, bool(alive)),
    ]
    found += [*fleet_checks.agreement(alive, queue.settings.lease_ms), fleet_checks.deaths(depths.stats)]
    found += counters(queue, depths, sorted(known))
    found += [quarantine(depths, sorted(known)), dead_letters(depths), await records(queue)]
    found += [await gate_checks.claims(queue, sorted(known)), await gate_checks.gates(queue)]
    found.append(await gate_checks.pauses(queue))
    found += await leak_checks.leaks(queue)
    return found + await mirror(queue) + await outbox(queue.settings)


async def fix(queue: Queue, findings: Sequence[Finding], *, actor: str) -> int:
    """Put right what can be put right without harm, and say so in the log; returns how many findings.

    Counters are moved by what they were off by, so a job that moves meanwhile is counted all the same.
    """
    fixable = [each for each in findings if each.fixes]
    for each in fixable:
        await tune.note(queue, actor, f"doctor:{each.check}", "fix", each.found)
        for one in each.fixes:
            await (queue.caller.run(one) if isinstance(one, Call) else queue.caller.command(*one))
    return len(fixable)


def worst(findings: Sequence[Finding]) -> Severity:
    """The worst of them; OK when there is none."""
    order = list(Severity)
    return max((each.severity for each in findings), key=order.index, default=Severity.OK)


async def namespace(queue: Queue, alive: bool) -> Finding:
    """The keys are in the layout that this version knows. `alive`: workers are here now."""
    ours = {"schema": SCHEMA, "shards": SHARDS}
    found = await queue.caller.command("HMGET", queue.keys.meta, *ours)
    theirs = {
        name: None if value is None else value.decode() for name, value in zip(ours, found, strict=True)
    }
    where = f"namespace {queue.keys.namespace}"
    if all(value is None for value in theirs.values()):
        if alive:
            return warning(
                "namespace",
                f"{where}: workers are alive, but Redis lost what they noted of its layout",
                "they note it again with their next session; look again in a minute, else restart one",
            )
        return warning("namespace", f"{where}: no worker was ever here", "is the name right? Start a worker")
    if theirs != ours:
        shown = ", ".join(f"{name} {value}" for name, value in theirs.items())
        return problem(
            "namespace",
            f"{where} holds {shown}; this version works with schema {SCHEMA}, shards {SHARDS}",
            "use the version that wrote it, or another namespace",
        )
    return ok("namespace", f"{where}: schema {SCHEMA}, shards {SHARDS}")


def tasks(oddities: Sequence[str]) -> list[Finding]:
    """Declarations that are allowed and probably not meant."""
    advice = "change what is declared, or leave it if it is meant"
    return [warning("tasks", line, advice) for line in oddities] or [ok("tasks", "no odd declarations")]


async def read_depths(queue: Queue, lanes: Sequence[str]) -> Depths:
    """Counters, streams and schedule of one moment."""
    keys = queue.keys
    places = [(lane, kind) for lane in lanes for kind in (*STREAM_SUFFIX, "b")]
    commands: list[tuple[Any, ...]] = [("HGETALL", keys.stats), ("TIME",), ("XLEN", keys.dlq)]
    commands += [("ZCARD", keys.schedule), ("ZRANGE", keys.schedule, 0, 0, "WITHSCORES")]
    for lane, kind in places:
        stream = keys.stream(lane, kind)
        commands += [("XLEN", stream), ("XPENDING", stream, GROUP)]
    link = await queue.caller.ready()
    # Written in one go, so that no other call of this connection comes in between.
    sent = [link.send("MULTI"), *(link.send(*each) for each in commands)]
    replies = await link.call("EXEC")
    for each in sent:
        await each
    stats, time, letters, scheduled, nearest, *rest = replies
    counts = {name.decode(): int(value) for name, value in pairs(stats).items()}
    streams = {}
    for place, length, pending in zip(places, rest[::2], rest[1::2], strict=True):
        streams[place] = (int(length), 0 if isinstance(pending, ReplyError) else int(pending[0]))  # R9
    return Depths(
        counts,
        streams,
        int(scheduled),
        int(float(nearest[1])) if nearest else None,
        int(letters),
        int(time[0]) * 1000 + int(time[1]) // 1000,
    )


def workers(depths: Depths, lanes: Sequence[str], alive: Sequence[dict[str, Any]]) -> Finding:
    """Somebody serves each lane in which jobs wait."""
    served = {lane for worker in alive for lane in worker["lanes"]}
    waiting = {lane: depths.entries(lane) - depths.delivered(lane) for lane in lanes}
    deserted = [lane for lane in lanes if waiting[lane] > 0 and lane not in served]
    shown = (
        f"{counted(len(alive), 'worker')} alive, serving {', '.join(sorted(served))}"
        if alive
        else "no worker is alive"
    )
    if deserted:
        jobs = ", ".join(f"{waiting[lane]} in {lane}" for lane in deserted)
        return problem("workers", f"{shown}; jobs wait: {jobs}", "start workers for these lanes")
    if not alive:
        return warning(
            "workers", f"{shown}; nothing waits in a lane", "start one: streamworker run module:app"
        )
    return ok("workers", shown)


def schedule(queue: Queue, depths: Depths, alive: bool) -> Finding:
    """Due jobs are moved into their lanes."""
    late_ms = 0 if depths.next_due_ms is None else depths.now_ms - depths.next_due_ms
    shown = f"{counted(depths.scheduled, 'job')} in the schedule"
    if late_ms > queue.settings.lease_ms + OVERDUE_MS:
        return problem(
            "schedule",
            f"{shown}; the first has been due for {durations.format_ms(late_ms)}",
            "look into the workers' logs for `keeper`" if alive else "start a worker: it moves due jobs",
        )
    return ok("schedule", shown)


def counters(queue: Queue, depths: Depths, lanes: Sequence[str]) -> list[Finding]:
    """The depth counters agree with what is there."""
    found = []
    for lane in lanes:
        queued = depths.stats.get(f"queued:{lane}", 0)
        in_flight = depths.stats.get(f"in_flight:{lane}", 0)
        entries, delivered = depths.entries(lane), depths.delivered(lane)
        if queued + in_flight != entries:
            off = queued + in_flight - entries
            found.append(
                warning(
                    "counters",
                    f"lane {lane} counts {queued} queued, {in_flight} in flight; its streams hold {entries}",
                    "jobs are not affected, only what `lanes` shows. Is it so again in a minute? Then --fix "
                    "sets it right",
                    fixes=[("HINCRBY", queue.keys.stats, f"queued:{lane}", -off)],
                )
            )
        elif delivered != in_flight:
            found.append(
                warning(
                    "counters",
                    f"lane {lane}: {delivered} entries are delivered, {in_flight} jobs in flight",
                    "a worker was cut off while it claimed; within a lease they are claimed or handed back",
                )
            )
        deferred, kept = depths.stats.get(f"backlog:{lane}", 0), depths.streams[lane, "b"][0]
        if deferred != kept:
            found.append(
                warning(
                    "counters",
                    f"lane {lane} counts {deferred} jobs in its backlog, which holds {kept}",
                    "jobs are not affected. Is it so again in a minute? Then --fix sets it right",
                    fixes=[("HINCRBY", queue.keys.stats, f"backlog:{lane}", kept - deferred)],
                )
            )
    scheduled = sum(value for name, value in depths.stats.items() if name.startswith("scheduled:"))
    if scheduled != depths.scheduled:
        found.append(
            warning(
                "counters",
                f"{scheduled} jobs are counted as scheduled, the schedule holds {depths.scheduled}",
                "jobs are not affected. The keeper goes through all records and puts right what is in no "
                "place; look again later",
            )
        )
    return found or [ok("counters", f"{counted(len(lanes), 'lane')}: counters and streams agree")]


def quarantine(depths: Depths, lanes: Sequence[str]) -> Finding:
    """Jobs whose worker died wait apart (D22)."""
    waiting = {lane: depths.streams[lane, "q"][0] for lane in lanes if depths.streams[lane, "q"][0]}
    if waiting:
        return warning(
            "quarantine",
            f"{sum(waiting.values())} jobs whose worker died are in quarantine ({', '.join(waiting)})",
            "the workers' logs may say what ended them; a job that ends three is a dead letter crash_loop",
        )
    return ok("quarantine", "no job has ended its worker lately")


def dead_letters(depths: Depths) -> Finding:
    """Nobody has to look at anything."""
    if depths.dead_letters:
        return warning(
            "dead letters",
            counted(depths.dead_letters, "dead letter"),
            "look with `streamworker dlq list`; replay or discard them",
        )
    return ok("dead letters", "none")


async def records(queue: Queue) -> Finding:
    """A sample of the records can be read."""
    prefix = queue.keys.job("")
    seen, bad, cursor = 0, list[str](), 0
    while True:
        at, keys = await queue.caller.command("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", SCAN_COUNT)
        for key, raw in zip(keys, await read_all(queue, keys), strict=True):
            if raw is None:  # gone since the scan
                continue
            seen += 1
            job_id = key.decode("utf-8", "replace")[len(prefix) :]
            try:
                Record.parse(job_id, raw)
            except (ValueError, AttributeError):
                bad.append(job_id)
        cursor = int(at)
        if cursor == 0 or seen >= SAMPLE:
            break
    if bad:
        named = ", ".join(bad[:NAMED]) + (" …" if bad[NAMED:] else "")
        return problem(
            "records",
            f"{len(bad)} of {seen} records cannot be read: {named}",
            "a worker makes a dead letter bad_record of each that it claims; find out who else writes here",
        )
    return ok("records", f"{seen} looked at, all readable")


async def read_all(queue: Queue, keys: Sequence[bytes]) -> list[Any]:
    """The values of these keys; None for one that is gone or no string."""
    return list(await queue.caller.command("MGET", *keys)) if keys else []
