"""What a worker says of itself, a few times a second, and what health probes make of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: Seconds without a sign of the event loop after which it counts as stalled.
STALLED_AFTER = 10.0
#: Readiness bears a silence of Redis for the length of a lease, and at least for so many seconds.
SILENCE_BORNE = 10.0


@dataclass(frozen=True, slots=True)
class Status:
    """One look at a worker. Times are monotonic seconds."""

    at: float  # when the event loop said so
    lag: float = 0.0  # seconds that the loop was late
    session: bool = False  # it has a session with Redis
    heard: float = 0.0  # last good reply of Redis; 0: none yet
    claiming: bool = True  # False: it is shutting down
    busy: Mapping[str, int] = field(default_factory=dict)  # slots in use by lane
    wedged: bool = False  # each slot is taken by a handler that was given up and does not end
    longest: Mapping[str, float] = field(default_factory=dict)  # seconds that the oldest handler ran, by lane
    errors: Mapping[str, int] = field(default_factory=dict)  # of Redis by kind, since the start
    recovered: int = 0  # jobs of dead workers, since the start
    promoted: int = 0  # due jobs brought back, since the start
    breakers: Mapping[str, str] = field(default_factory=dict)  # state by dependency


class Health:
    """Answers probes from the last status; safe to ask from another thread.

    A loop that is stalled tells nothing any more, and that is how it is noticed.
    """

    def __init__(
        self, clock: Callable[[], float], *, lease: float, slots: int, stalled_after: float = STALLED_AFTER
    ) -> None:
        self._clock = clock
        self._slots = slots
        self._silence = max(lease, SILENCE_BORNE)
        self._stalled_after = stalled_after
        self._last = Status(clock())
        self._doubts: list[str] = []

    def degrade(self, doubt: str) -> None:
        """It serves, but nobody knows whether Redis keeps what it is given (R39)."""
        self._doubts.append(doubt)

    def tell(self, status: Status) -> None:
        """The loop runs, and this is how things are."""
        self._last = status

    def beat(self) -> None:
        """The loop runs, and there is nothing else to say: the worker is starting, or has served."""
        self._last = replace(self._last, at=self._clock())

    def alive(self) -> tuple[bool, dict[str, Any]]:
        """Whether the event loop runs."""
        age = max(0.0, self._clock() - self._last.at)
        stalled = age >= self._stalled_after
        return not stalled, {"status": "stalled" if stalled else "ok", "loop_age_seconds": round(age, 3)}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether it claims jobs and has heard of Redis lately."""
        last = self._last
        age = max(0.0, self._clock() - last.heard) if last.heard else None
        fresh = age is not None and age < self._silence
        redis = "ok" if last.session and fresh else "silent" if last.session else "no session"
        alive, _ = self.alive()
        ready = alive and redis == "ok" and last.claiming and not last.wedged
        return ready, {
            "status": _word(ready, last),
            "redis": redis,
            "age_seconds": None if age is None else round(age, 3),
            "slots": {"capacity": self._slots, "in_use": sum(last.busy.values())},
            **({"degraded": list(self._doubts)} if self._doubts else {}),
        }


def _word(ready: bool, last: Status) -> str:
    if ready:
        return "ready"
    return "stopping" if not last.claiming else "wedged" if last.wedged else "not ready"
