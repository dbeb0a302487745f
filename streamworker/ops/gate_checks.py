"""Holders of gates that hold nothing, and claims that nobody looks after."""

from __future__ import annotations

from collections.abc import Sequence

from streamworker.core import durations
from streamworker.core.gates import words_of
from streamworker.core.job import Record
from streamworker.core.states import Status
from streamworker.ops import tune
from streamworker.ops.checks import Finding, ok, problem, warning
from streamworker.ops.history import iso
from streamworker.store.connection import ReplyError
from streamworker.store.keys import GROUP, STREAM_SUFFIX
from streamworker.store.queue import Queue

#: Gates and holders that are looked at, keys of one step, and names that a finding tells.
GATES, HOLDERS, STEP, NAMED = 1_000, 100, 1_000, 3
#: Leases after which a claim should long have been taken over.
STUCK_LEASES = 3


async def gates(queue: Queue) -> Finding:
    """Each holder of a gate runs, or was granted it (D13)."""
    prefix, cursor, seen = queue.keys.gate(""), 0, 0
    idle: list[str] = []
    while True:
        at, raw = await queue.caller.command("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", STEP)
        for key in raw:
            seen += 1
            gate = key.decode("utf-8", "replace").removeprefix(prefix)
            holders = await queue.caller.command("ZRANGE", key, 0, HOLDERS - 1)
            idle += [gate for holder in holders if not await _holds(queue, gate, holder.decode())]
        cursor = int(at)
        if cursor == 0 or seen >= GATES:
            break
    if idle:
        named = ", ".join(sorted(set(idle))[:NAMED])
        return warning(
            "gates",
            f"{len(idle)} holders of gates neither run nor were granted them: {named}",
            "a full gate drops its oldest false holder by itself; is it so again in a minute? "
            "`streamworker gates NAME` lists them",
        )
    return ok("gates", f"{seen} held gates looked at, each by a job that is alive")


async def pauses(queue: Queue) -> Finding:
    """Nothing is paused until somebody thinks of it."""
    open_ended = [one for one in await tune.pauses(queue) if one.state == "paused" and one.until is None]
    if not open_ended:
        return ok("pauses", "nothing is paused without an end")
    named = ", ".join(f"{one.scope} by {one.by} at {iso(one.since)}" for one in open_ended[:NAMED])
    more = f" and {len(open_ended) - NAMED} more" if len(open_ended) > NAMED else ""
    return warning(
        "pauses",
        f"paused until somebody resumes it: {named}{more}",
        f"`streamworker resume {open_ended[0].scope}` if it was forgotten; all: `streamworker settings`",
    )


async def _holds(queue: Queue, gate: str, job_id: str) -> bool:
    raw = await queue.caller.command("GET", queue.keys.job(job_id))
    if raw is None:
        return False
    try:
        record = Record.parse(job_id, raw)
    except ValueError:
        return False
    if record.status in (Status.CLAIMED, Status.PROCESSING):
        return True
    granted = (record.text("hg") or "").split()
    kept = any(  # an entity that is kept through retries
        (name, figures) == (gate, "strict") for name, figures, _ in words_of(record.text("ga") or "")
    )
    return gate in granted or (kept and record.status is Status.RETRY_SCHEDULED)


async def claims(queue: Queue, lanes: Sequence[str]) -> Finding:
    """No delivered entry is older than what sweeps take over."""
    stuck_ms = STUCK_LEASES * queue.settings.lease_ms
    stuck, oldest = 0, 0
    for lane in lanes:
        for kind in STREAM_SUFFIX:
            stream = queue.keys.stream(lane, kind)
            try:
                found = await queue.caller.command(
                    "XPENDING", stream, GROUP, "IDLE", stuck_ms, "-", "+", HOLDERS
                )
            except ReplyError:  # nobody has read from it yet
                continue
            for entry, _, idle, _ in found:
                if not await _is_held(queue, stream, entry):
                    stuck, oldest = stuck + 1, max(oldest, int(idle))
    if stuck:
        return problem(
            "claims",
            f"{stuck} entries are delivered and untouched for up to {durations.format_ms(oldest)}",
            "a sweep takes them over within a lease: look into the workers' logs for `keeper`",
        )
    return ok("claims", "no delivered entry is left alone")


async def _is_held(queue: Queue, stream: str, entry: bytes) -> bool:
    """Whether a lease still stands behind a delivered entry."""
    found = await queue.caller.command("XRANGE", stream, entry, entry)
    if not found:
        return False
    flat = found[0][1]
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    job_id = fields.get(b"id", b"").decode("utf-8", "replace")
    raw = await queue.caller.command("GET", queue.keys.job(job_id))
    seconds, _ = await queue.caller.command("TIME")
    try:
        return raw is not None and Record.parse(job_id, raw).lease_until > int(seconds) * 1000
    except ValueError:
        return False
