"""Who holds which gate, and who waits there."""

from __future__ import annotations

from typing import Any

from streamworker.core.breaker import Standing
from streamworker.core.errors import InvalidArgument
from streamworker.core.gates import GateKind
from streamworker.core.job import Record
from streamworker.ops.breakers import standings
from streamworker.ops.history import iso
from streamworker.ops.tune import pauses
from streamworker.store.queue import Queue

#: Keys that one step of a scan asks for.
SCAN_COUNT = 1000
#: Holders and waiters that are listed at most.
LISTED = 100
#: Gates that are listed at most.
GATES = 1000


async def gates(queue: Queue) -> list[dict[str, Any]]:
    """`gates --json`: each gate that is paused, held or waited at, by name, with how many hold it and wait.

    `waiting` is by lane, `state` of pauses and breakers, `opens_at` when a rate's next token comes or a
    breaker's next trial.
    """
    command = queue.caller.command
    waits = {
        name.decode(): _counts(text.decode())
        for name, text in _pairs(await command("HGETALL", queue.keys.waiting))
    }
    states: dict[str, str] = {f"pause:{one.scope}": one.state for one in await pauses(queue)}
    states |= {name: one.state for name, one in (await standings(queue)).items()}
    names = set(waits) | set(states) | await _held(queue)
    found = []
    for name in sorted(names)[:GATES]:
        due = await command("ZSCORE", queue.keys.timers, name)
        found.append(
            {
                "gate": name,
                "kind": name.partition(":")[0],
                "state": states.get(name),
                "holders": await command("ZCARD", queue.keys.gate(name)),
                "waiting": waits.get(name, {}),
                "opens_at": iso(int(float(due))) if due not in (None, b"inf") else None,
            }
        )
    return found


async def oldest_waiters(queue: Queue) -> dict[str, int]:
    """When the oldest job that waits at a gate was enqueued, by lane: the first at each gate is looked at.

    Of more gates than are listed it is the oldest at some of them.
    """
    command, oldest = queue.caller.command, dict[str, int]()
    found = _pairs(await command("HGETALL", queue.keys.waiting))
    for name, text in found[:GATES]:
        for lane in _counts(text.decode()):
            for job_id in await command("ZRANGE", queue.keys.waiters(lane, name.decode()), 0, 0):
                record = await _record(queue, job_id.decode())
                if record is not None:
                    at = record.number("at") or 0
                    oldest[lane] = min(oldest.get(lane, at), at)
    return oldest


async def _held(queue: Queue) -> set[str]:
    prefix, names, cursor = queue.keys.gate(""), set[str](), 0
    while True:
        reply = await queue.caller.command("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", SCAN_COUNT)
        names.update(key.decode().removeprefix(prefix) for key in reply[1])
        cursor = int(reply[0])
        if not cursor:
            return names


def _counts(text: str) -> dict[str, int]:
    """From the index of waiters: `lane count lane count`."""
    words = text.split()
    return {lane: int(count) for lane, count in zip(words[::2], words[1::2], strict=True)}


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


async def gate(queue: Queue, name: str) -> dict[str, Any]:
    """`gates NAME --json`: who holds it, since when, and who waits, the first first. Raises InvalidArgument.

    A holder that is `granted` waits in its lane's ready stream, and nobody has claimed it yet.
    """
    kind, colon, rest = name.partition(":")
    if not colon or not rest or kind not in list(GateKind):
        known = ", ".join(f"{each}:…" for each in GateKind)
        raise InvalidArgument("gate", name, f"is none of {known}; `streamworker gates` lists them")
    command = queue.caller.command
    held = _pairs(await command("ZRANGE", queue.keys.gate(name), 0, LISTED - 1, "WITHSCORES"))
    text = await command("HGET", queue.keys.waiting, name)
    lanes = _counts((text or b"").decode())
    queued = []
    for lane in lanes:
        key = queue.keys.waiters(lane, name)
        for job_id, place in _pairs(await command("ZRANGE", key, 0, LISTED - 1, "WITHSCORES")):
            queued.append((int(place), lane, job_id.decode()))
    queued.sort()
    paused = await pauses(queue)
    return {
        "gate": name,
        "kind": kind,
        "holders": [await _holder(queue, job_id.decode(), int(score)) for job_id, score in held],
        "waiting": lanes,
        "waiters": [
            {"id": job_id, "lane": lane, "task": await _task(queue, job_id)}
            for _, lane, job_id in queued[:LISTED]
        ],
        "paused": next((one.json() for one in paused if f"pause:{one.scope}" == name), None),
        "breaker": _standing((await standings(queue)).get(name)),
    }


def _standing(one: Standing | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "state": one.state,
        "since": iso(one.since),
        "until": iso(one.until),
        "by": one.by,
        "reason": one.reason,
    }


async def _record(queue: Queue, job_id: str) -> Record | None:
    raw = await queue.caller.command("GET", queue.keys.job(job_id))
    try:
        return None if raw is None else Record.parse(job_id, raw)
    except ValueError:
        return None


async def _task(queue: Queue, job_id: str) -> str | None:
    record = await _record(queue, job_id)
    return None if record is None else record.task


async def _holder(queue: Queue, job_id: str, score: int) -> dict[str, Any]:
    record = await _record(queue, job_id)
    return {
        "id": job_id,
        "task": None if record is None else record.task,
        "lane": None if record is None else record.lane,
        "worker": record.worker if record is not None and record.fence else None,
        "state": "runs" if score > 0 else "granted",
        "since": iso(score) if score > 0 else None,
    }
