"""Reads the transition log: which moves a job made, when, by whom and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from streamworker.core.states import Status


@dataclass(frozen=True, slots=True)
class Transition:
    """One edge of one job's life."""

    job_id: str
    epoch: int
    version: int
    from_status: Status | None  # None: the job was enqueued
    to_status: Status
    at_ms: int
    attempt: int
    fence: int
    reason: str
    worker: str | None
    script: str
    #: What only some edges have: class, code, due, policy, task, lane, tenant.
    facts: Mapping[str, str] = field(default_factory=dict)


def decode(fields: Mapping[bytes, bytes]) -> Iterator[Transition]:
    """The transitions of one entry of the log, which holds one script call however many jobs it moved."""
    at = int(fields[b"t"])
    worker = fields.get(b"w", b"-").decode()
    script = fields.get(b"s", b"").decode()
    for line in fields.get(b"e", b"").decode().splitlines():
        job_id, epoch, version, before, after, offset, attempt, fence, reason, *facts = line.split(" ")
        yield Transition(
            job_id,
            int(epoch),
            int(version),
            None if before == "-" else Status(before),
            Status(after),
            at + int(offset),
            int(attempt),
            int(fence),
            reason,
            None if worker == "-" else worker,
            script,
            dict(fact.split("=", 1) for fact in facts),
        )


def pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    """A flat reply of names and values as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
