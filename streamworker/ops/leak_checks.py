"""Keys that should expire and do not, and keys that nobody knows (R48)."""

from __future__ import annotations

from collections.abc import Iterator

from streamworker.core.job import Record
from streamworker.core.states import TERMINAL
from streamworker.ops.checks import Finding, ok, warning
from streamworker.store import scripts
from streamworker.store.connection import Argument
from streamworker.store.keys import is_known, is_live_state
from streamworker.store.queue import Queue
from streamworker.store.scripts import BATCH, RETENTION_MS, Call

#: Keys that are looked at, keys of one step, and names that a finding tells.
SAMPLE, STEP, NAMED = 20_000, 500, 3


async def leaks(queue: Queue) -> list[Finding]:
    """Every key has an end, or stands for something that has none."""
    tag, seen, cursor = f"{queue.keys.tag}:", 0, 0
    endless: list[str] = []
    strange: list[str] = []
    while True:
        at, raw = await queue.caller.command("SCAN", cursor, "MATCH", f"{tag}*", "COUNT", STEP)
        names = [key.decode("utf-8", "replace") for key in raw]
        seen += len(names)
        for name in names:
            if not is_known(name):
                strange.append(name)
            elif await _is_endless(queue, name):
                endless.append(name)
        cursor = int(at)
        if cursor == 0 or seen >= SAMPLE:
            break
    found = []
    if endless:
        found.append(
            warning(
                "leaks",
                f"{len(endless)} of {seen} keys are of jobs that are over, and never go: {_named(endless)}",
                f"they take memory; --fix lets them expire after {RETENTION_MS // 60_000} minutes",
                fixes=list(_ends(queue, endless)),
            )
        )
    if strange:
        found.append(
            warning(
                "leaks",
                f"{len(strange)} of {seen} keys are none of streamworker's: {_named(strange)}",
                "find out who writes into this namespace, or whether a newer version did",
            )
        )
    return found or [ok("leaks", f"{seen} keys looked at, each has its end")]


def _ends(queue: Queue, names: list[str]) -> Iterator[tuple[Argument, ...] | Call]:
    """What gives them an end; of jobs by a script, which sees whether one has been replayed meanwhile."""
    prefixes = queue.keys.job(""), queue.keys.body("")
    jobs = sorted({name.removeprefix(each) for name in names for each in prefixes if name.startswith(each)})
    for start in range(0, len(jobs), BATCH):
        rows = jobs[start : start + BATCH]
        yield scripts.repair(clock="", worker="doctor", retention_ms=RETENTION_MS, rows=rows)
    for name in names:
        if not name.startswith(prefixes):
            yield "PEXPIRE", name, RETENTION_MS, "NX"


def _named(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (" …" if names[NAMED:] else "")


async def _is_endless(queue: Queue, name: str) -> bool:
    """Whether it should have a TTL and has none."""
    command, keys = queue.caller.command, queue.keys
    if not is_live_state(name):
        return bool(await command("PTTL", name) == -1)
    if name.startswith(keys.job("")):
        return await _is_over(queue, name.removeprefix(keys.job(""))) and await command("PTTL", name) == -1
    if name.startswith(keys.body("")):
        job_id = name.removeprefix(keys.body(""))
        return await _is_over(queue, job_id) and await command("PTTL", name) == -1
    return False


async def _is_over(queue: Queue, job_id: str) -> bool:
    raw = await queue.caller.command("GET", queue.keys.job(job_id))
    if raw is None:
        return True
    try:
        return Record.parse(job_id, raw).status in TERMINAL
    except ValueError:  # another check tells of it
        return False
