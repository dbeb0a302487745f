"""What a mirror says of itself: plain numbers, the probes' answers and the text for Prometheus."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from streamworker.postgres.log import Lag
from streamworker.telemetry.catalogue import BATCH_SECONDS, BY_NAME
from streamworker.telemetry.histogram import Histogram

#: Kinds of errors that start at 0, so that the first one is seen.
KINDS = BY_NAME["mirror_errors"].values["kind"]
#: Seconds that the log may be behind before the mirror is not ready.
BEHIND = 60.0


class State(StrEnum):
    """What the mirror does now."""

    STARTING = "starting"
    STANDBY = "standby"  # another one writes
    MIRRORING = "mirroring"
    RECONCILING = "reconciling"
    POSTGRES_AWAY = "postgres_away"
    REDIS_AWAY = "redis_away"
    STOPPED = "stopped"


@dataclass(slots=True)
class Gauges:
    """Told by the mirror's loop; read by whoever asks."""

    state: State = State.STARTING
    since: float = field(default_factory=time.monotonic)
    problem: str = ""
    lag: Lag | None = None
    rows: dict[str, int] = field(default_factory=lambda: {"jobs": 0, "job_transitions": 0})
    known: int = 0
    errors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    batches: int = 0
    duration: Histogram = field(default_factory=lambda: Histogram(BATCH_SECONDS))

    def enter(self, state: State, problem: str = "") -> bool:
        """Note the state; whether it is a new one."""
        changed = state is not self.state
        if changed:
            self.since = time.monotonic()
        self.state, self.problem = state, problem
        return changed

    def count(self, kind: str, by: int = 1) -> None:
        """Errors of a kind."""
        self.errors[kind] = self.errors.get(kind, 0) + by

    def batch(self, seconds: float) -> None:
        """A batch was committed."""
        self.batches += 1
        self.duration.observe(seconds)

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether it mirrors, or stands by, and is not far behind."""
        lag = self.lag
        behind = lag is not None and lag.seconds > BEHIND and self.state is not State.STANDBY
        ready = self.state in (State.STANDBY, State.MIRRORING, State.RECONCILING) and not behind
        return ready, {
            "status": "ready" if ready else "behind" if behind else "not ready",
            "state": str(self.state),
            "state_seconds": round(time.monotonic() - self.since, 1),
            "problem": self.problem or None,
            "lag_seconds": None if lag is None else round(lag.seconds, 3),
            "lag_events": None if lag is None else lag.entries,
            "log_bytes": None if lag is None else lag.bytes,
        }


def page(gauges: Gauges) -> str:
    """The numbers in the text that Prometheus reads."""
    from streamworker.telemetry.catalogue import Scope
    from streamworker.telemetry.exposition import Page
    from streamworker.telemetry.families import Sheet

    def fill(sheet: Sheet) -> None:
        for table, count in gauges.rows.items():
            sheet.put("mirror_rows_written", count, table)
        for kind, count in sorted(gauges.errors.items()):
            sheet.put("mirror_errors", count, kind)
        for each in State:
            sheet.put("mirror_state", int(each is gauges.state), str(each))
        sheet.spread("mirror_batch_duration_seconds", gauges.duration)
        if gauges.lag is not None:
            sheet.put("mirror_lag_seconds", gauges.lag.seconds)
            sheet.put("mirror_lag_events", gauges.lag.entries)
            sheet.put("mirror_log_bytes", gauges.lag.bytes)

    return Page({Scope.MIRROR: fill}).text()
