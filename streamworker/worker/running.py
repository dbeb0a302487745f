"""A claim on its way through this worker, from the claim's reply until its settle is acknowledged."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streamworker.core.job import Claim, Envelope
from streamworker.core.outcome import Outcome


class Stop(StrEnum):
    """Why a handler was told to end."""

    TIMEOUT = "timeout"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    LOST = "lost"
    SHUTDOWN = "shutdown"
    OUT_OF_TOUCH = "out_of_touch"


@dataclass(slots=True, eq=False)
class Running:
    """One claim that this worker holds. Times are monotonic seconds."""

    claim: Claim
    task_name: str = ""
    taken: float = 0.0  # when its claim came
    started: float | None = None  # when the handler began; None: it has not
    stop_at: float = float("inf")  # the attempt's timeout or the job's deadline, whichever comes first
    stop_reason: Stop = Stop.TIMEOUT
    stopping: Stop | None = None  # what the handler was told
    told_at: float = 0.0
    marked: bool = False  # the start mark was sent
    outcome: Outcome | None = None  # set once; never replaced
    ended: float = 0.0  # when it came to its outcome
    occupies: bool = False  # it has a slot
    away: bool = False  # its handler runs in another process
    apart: bool = False  # its slot is the quarantine child, none of the worker's own (D22)
    handler: asyncio.Task[None] | None = None
    entered: bool = False  # the handler's task has begun: before that it cannot be cancelled
    thread: Future[Any] | None = None
    envelope: Envelope | None = None  # what the producer sent, once it was read
    dependency: str | None = None  # whose call failed, if that is why it failed
    who: str = ""  # how log lines name it, once there is one
    stale: set[str] | None = None  # cached values to drop once its outcome is durable
    #: Rows that failed to settle because the script refused them, not the connection.
    refusals: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """What "lost" is keyed by: job and fence (D1)."""
        return (self.claim.job_id, self.claim.fence)

    @property
    def place(self) -> tuple[str, str, str]:
        """Lane, kind and entry."""
        return (self.claim.lane, self.claim.kind, self.claim.entry)

    def tell(self, reason: Stop, now: float) -> None:
        """Ask the handler to end. The first reason stands, except that a lost claim overrules it."""
        if self.stopping is None:
            self.stopping, self.told_at = reason, now
            if self.handler is not None and self.entered:
                self.handler.cancel()
        elif reason is Stop.LOST:
            self.stopping = reason
