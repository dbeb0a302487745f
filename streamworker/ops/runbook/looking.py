"""Looks at a namespace for the runbook: two looks at the counters, samples of what waits, what is set."""

from __future__ import annotations

from asyncio import gather, sleep
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from streamworker.core.gates import GateKind
from streamworker.core.limits import DEPENDENCY_SCOPE
from streamworker.ops import breakers, inspect, overload, settings, top, tune
from streamworker.ops.runbook.held import held, values
from streamworker.ops.runbook.samples import crowds, letters, retries
from streamworker.ops.runbook.sight import Service, Sight
from streamworker.ops.snapshot import Snapshot
from streamworker.ops.top import LaneRow
from streamworker.ops.tune import Pause
from streamworker.store import manifest
from streamworker.store.depths import oldest_ms
from streamworker.store.events import pairs
from streamworker.store.manifest import Declaration
from streamworker.store.queue import Queue

#: Seconds between the two looks.
BETWEEN = 1.0


async def look(queue: Queue, seconds: float = BETWEEN) -> Sight:
    """What is there now, with rates over so many seconds.

    Costs a few hundred commands however much waits; changes nothing. Raises ConnectionLost,
    ServerUnsuitable or ReplyError.
    """
    before, _ = await top.look(queue)
    await sleep(seconds)
    now, drain = await top.look(queue)
    frame = top.frame(before, now, drain)
    # At once: on a busy machine each round trip takes its time.
    (declared, workers), (pauses, throttles, set_now), (limits, found), (crowd, tried, died) = await gather(
        gather(declarations(queue), inspect.workers(queue)),
        gather(tune.pauses(queue), overload.throttles(queue), settings.settings(queue)),
        gather(tune.limits(queue), breakers.breakers(queue)),
        gather(crowds(queue, now, drain), retries(queue), letters(queue, round(now.at * 1000))),
    )
    slots = [worker["concurrency"] or 0 for worker in workers]
    passed = now.at - before.at
    return Sight(
        app=queue.settings.namespace,
        at=round(now.at * 1000),
        lanes=tuple([await _whole(queue, row, now, pauses) for row in frame.lanes]),
        workers=len(workers),
        slots=sum(slots),
        least=min(slots, default=0),
        serving=Counter(lane for worker in workers for lane in worker["lanes"]),
        crowds=crowd,
        services=tuple(services(declared, found, limits, now)),
        drain=drain,
        deferred=(deferred(now) - deferred(before)) / passed if passed > 0 else 0.0,
        throttles=tuple(throttles),
        pauses=tuple(pauses),
        retries=tried,
        letters=replace(died, total=frame.dead, a_second=frame.dying or 0.0),
        keyed=frozenset(task for task, one in declared.items() if one.key is not None),
        held=held(set_now),
        favoured=values("slots", set_now),
        calmed=values("retries", set_now),
    )


async def _whole(queue: Queue, row: LaneRow, now: Snapshot, pauses: Collection[Pause]) -> LaneRow:
    """A lane that no worker serves or declares has its age and its pause all the same."""
    if row.lane in now.lanes:
        return row
    age = await oldest_ms(queue.caller.command, queue.keys, row.lane, round(now.at * 1000))
    stands = any(one.scope == f"lane:{row.lane}" and one.state == "paused" for one in pauses)
    return replace(row, oldest=None if age is None else age / 1000, paused=stands)


async def declarations(queue: Queue) -> dict[str, Declaration]:
    """What workers have published of each task."""
    meta = pairs(await queue.caller.command("HGETALL", queue.keys.meta))
    found = {}
    for name, value in meta.items():
        field = name.decode("utf-8", "replace")
        if field.startswith(manifest.FIELD):
            task = field.removeprefix(manifest.FIELD)
            if (one := manifest.read(task, value)) is not None:
                found[task] = one
    return found


def deferred(snapshot: Snapshot) -> int:
    """Jobs that ever went into the backlog."""
    return sum(count for (_, decision, _), count in snapshot.admissions.items() if decision == "deferred")


def services(
    declared: Mapping[str, Declaration],
    found: list[dict[str, object]],
    limits: list[dict[str, object]],
    now: Snapshot,
) -> list[Service]:
    """The dependencies that tasks use, with their breakers, limits and jobs, by name."""
    users: dict[str, set[str]] = {}
    for task, one in declared.items():
        for gate in one.gates:
            if gate.scope.startswith(DEPENDENCY_SCOPE):
                users.setdefault(gate.scope.removeprefix(DEPENDENCY_SCOPE), set()).add(task)
    standing = {str(row["dependency"]): row for row in found}
    figures = {str(row["name"]): row["in_force"] for row in limits}
    running: Counter[str] = Counter()
    for (_, task, state), count in now.jobs.items():
        if state == "in_flight":
            running[task] += count
    services = []
    for name in sorted(users | standing.keys()):
        tasks, row = frozenset(users.get(name, ())), standing.get(name)
        limit = figures.get(f"{GateKind.CONCURRENCY}:{DEPENDENCY_SCOPE}{name}")
        gates = (f"{kind}:{DEPENDENCY_SCOPE}{name}" for kind in GateKind)
        service = Service(
            name,
            tasks,
            running=sum(running[task] for task in tasks),
            waiting=sum(now.waiting.get(gate, 0) for gate in gates),
            limit=None if limit is None else int(str(limit)),
        )
        if row is not None:
            by = row["by"]
            service = replace(
                service,
                state=str(row["state"]),
                by=None if by in (None, "-") else str(by),
                ok=int(str(row["ok"])),
                failed=int(str(row["failed"])),
            )
            if row["declared"] is not None:
                percent, calls, *_ = str(row["declared"]).split(",")
                service = replace(service, share=int(percent) / 100, fewest=int(calls))
        services.append(service)
    return services
