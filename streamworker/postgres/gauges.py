"""What a mirror says of itself: plain numbers, the probes' answers and the text for Prometheus."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from streamworker.postgres.log import Lag

#: Upper bounds of a batch's duration, in seconds.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Kinds of errors that start at 0, so that the first one is seen.
KINDS = (
    "connection",
    "timeout",
    "read_only",
    "refused",
    "schema",
    "error",
    "redis",
    "row",
    "conflict",
    "gap",
)
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
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))

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
        self.seconds += seconds
        self.buckets[bisect_left(SECONDS, seconds)] += 1

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
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

    prefix = "streamworker_mirror_"

    class Families(Collector):
        def collect(self) -> Iterator[Metric]:
            rows = CounterMetricFamily(prefix + "rows_written", "Rows in Postgres.", labels=["table"])
            for table, count in gauges.rows.items():
                rows.add_metric([table], count)
            errors = CounterMetricFamily(prefix + "errors", "What went wrong.", labels=["kind"])
            for kind, count in sorted(gauges.errors.items()):
                errors.add_metric([kind], count)
            state = GaugeMetricFamily(prefix + "state", "1 for what it does now.", labels=["state"])
            for each in State:
                state.add_metric([str(each)], int(each is gauges.state))
            duration = HistogramMetricFamily(
                prefix + "batch_duration_seconds", "From the first statement to the commit."
            )
            total, buckets = 0, []
            for bound, count in zip([*map(str, SECONDS), "+Inf"], gauges.buckets, strict=True):
                total += count
                buckets.append((bound, total))
            duration.add_metric([], buckets, gauges.seconds)
            yield from (rows, errors, state, duration)
            if gauges.lag is not None:
                yield GaugeMetricFamily(
                    prefix + "lag_seconds", "Age of the oldest unread entry.", gauges.lag.seconds
                )
                yield GaugeMetricFamily(prefix + "lag_events", "Entries to be read.", gauges.lag.entries)
                yield GaugeMetricFamily(prefix + "log_bytes", "Bytes in the log.", gauges.lag.bytes)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families())
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()
