"""Entries of the log made by hand, as the scripts write them: docs/reference/events.md."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from streamworker.core.ids import new_job_id

#: 2026-07-24, noon, in ms.
NOON = 1_784_894_400_000


def job_id(number: int, *, shard: int = 0) -> str:
    """A job id that is the same each time."""
    return new_job_id(now_ms=NOON + number, shard=shard, random=number.to_bytes(8))


class Journal:
    """Makes entries with numbers and ids that follow each other."""

    def __init__(self, *, first: int = 1, at_ms: int = NOON) -> None:
        self._numbers = itertools.count(first)
        self.at_ms = at_ms

    def entry(
        self,
        *lines: str,
        script: str = "exchange",
        actor: str = "worker-1",
        audit: str = "",
        after_ms: int = 1,
        parts: Mapping[str, bytes] | None = None,
        **more: bytes,
    ) -> tuple[bytes, list[bytes]]:
        """One entry as XRANGE gives it; parts as `p1=b"..."`."""
        self.at_ms += after_ms
        number = next(self._numbers)
        flat = [b"n", b"%d" % number, b"t", b"%d" % self.at_ms, b"s", script.encode(), b"w", actor.encode()]
        if lines:
            flat += [b"e", "\n".join(lines).encode()]
        if audit:
            flat += [b"a", audit.encode()]
        for name, value in {**(parts or {}), **more}.items():
            flat += [name.encode(), value]
        return b"%d-%d" % (self.at_ms, number), flat

    def enqueued(
        self, *ids: str, facts: str = "", after_ms: int = 1, **parts: bytes
    ) -> tuple[bytes, list[bytes]]:
        """New jobs of task `mail` in lane `normal`."""
        lines = [f"{each} + mail normal{facts}" for each in ids]
        return self.entry(*lines, script="enqueue", actor="-", after_ms=after_ms, parts=parts)


def claimed(job: str, *, attempt: int = 1, version: int = 2, epoch: int = 0, fence: int = 7) -> str:
    """The line of a claim."""
    return f"{job} queued claimed {attempt} {attempt} 0 {version} {epoch} {fence} {NOON} claimed"


def succeeded(job: str, *, attempt: int = 1, version: int = 4, epoch: int = 0, fence: int = 7) -> str:
    """The line of a short job's end, which tells of its start as well."""
    token = f"succeeded {attempt} {attempt} 0 {version} {epoch} 0 0"
    return f"{job} claimed {token} returned fence={fence} started=-3"


def retried(job: str, *, attempt: int = 1, version: int = 4, fence: int = 7, due: int = NOON + 30_000) -> str:
    """The line of a retry."""
    return (
        f"{job} claimed retry_scheduled {attempt} {attempt} 0 {version} 0 0 0 error class=transient "
        f"code=timeout due={due} policy=transient:30000;j=0.1;f=1.0 fence={fence} started=-3"
    )


def failed(job: str, *, attempt: int = 1, version: int = 4, fence: int = 7, code: str = "broken") -> str:
    """The line of an end without success."""
    return (
        f"{job} claimed failed_terminal {attempt} {attempt} 0 {version} 0 0 0 error class=persistent "
        f"code={code} fence={fence} started=-3"
    )


def replayed(job: str, *, version: int = 5, epoch: int = 1) -> str:
    """The line of an operator's replay."""
    return f"{job} failed_terminal queued 0 0 0 {version} {epoch} 0 0 replayed"
