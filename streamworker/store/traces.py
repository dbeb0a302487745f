"""Where a tracer is told of enqueues and runs, if there is one: one look at `active` when there is none."""

from __future__ import annotations

from typing import Protocol

from streamworker.core.job import Claim, Envelope
from streamworker.core.outcome import Outcome


class Sending(Protocol):
    """One enqueue under way."""

    @property
    def context(self) -> str:
        """What travels in the envelope: a W3C `traceparent`."""

    @property
    def trace_id(self) -> str: ...

    def ended(self, disposition: str | None, error: BaseException | None = None) -> None:
        """What became of the request; None: it is not known."""


class Attempt(Protocol):
    """One run of a handler, in whose context what it calls stands."""

    def ended(self, outcome: Outcome) -> None:
        """What the attempt came to."""


class Tracer(Protocol):
    """Is told, and makes spans of it. Raises nothing."""

    def sending(self, task: str, lane: str, job_id: str, correlation_id: str | None) -> Sending:
        """A job is about to be enqueued."""

    def attempt(self, claim: Claim, envelope: Envelope) -> Attempt:
        """A handler runs from now on, in the task that calls this."""

    def flush(self, seconds: float) -> None:
        """Send what was made, for so long at most."""


#: The tracer of this process; None: nobody asked for traces. Set by `telemetry.tracing.enable`.
active: Tracer | None = None


#: Seconds that the last spans of a process may take.
LAST_SECONDS = 1.0


def flush(seconds: float = LAST_SECONDS) -> None:
    """Before `os._exit`, which runs nobody's end: what is made and not sent yet would be lost."""
    if active is not None:
        active.flush(seconds)
