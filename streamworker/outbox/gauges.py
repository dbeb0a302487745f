"""What a relay says of itself: plain numbers, the probes' answers and the text for Prometheus."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from streamworker.outbox.depth import Depth
from streamworker.telemetry.catalogue import BY_NAME

#: What becomes of rows; all start at 0.
RESULTS = BY_NAME["outbox_relayed"].values["result"]
#: Seconds without a round that worked before the relay is not ready.
SILENT = 30.0


@dataclass(slots=True)
class Gauges:
    """Told by the relay's loop; read by whoever asks."""

    relayed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESULTS, 0))
    depth: Depth | None = None
    #: When a round worked, in monotonic seconds; None: none has.
    worked_at: float | None = None
    problem: str = ""

    def worked(self) -> None:
        """A round has come to its end."""
        self.worked_at = time.monotonic()
        self.problem = ""

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether it relays, or would if anything waited."""
        silent = None if self.worked_at is None else time.monotonic() - self.worked_at
        ready = silent is not None and silent < SILENT
        depth = self.depth
        return ready, {
            "status": "ready" if ready else "not ready",
            "round_seconds_ago": None if silent is None else round(silent, 1),
            "problem": self.problem or None,
            "lag_seconds": None if depth is None else round(depth.lag_seconds, 3),
            "pending_rows": None if depth is None else depth.pending,
            "refused_rows": None if depth is None else depth.refused,
        }


def page(gauges: Gauges) -> str:
    """The numbers in the text that Prometheus reads."""
    from streamworker.telemetry.catalogue import Scope
    from streamworker.telemetry.exposition import Page
    from streamworker.telemetry.families import Sheet

    def fill(sheet: Sheet) -> None:
        for result, count in gauges.relayed.items():
            sheet.put("outbox_relayed", count, result)
        if gauges.depth is not None:
            sheet.put("outbox_lag_seconds", gauges.depth.lag_seconds)
            sheet.put("outbox_pending_rows", gauges.depth.pending)
            sheet.put("outbox_refused_rows", gauges.depth.refused)

    return Page({Scope.RELAY: fill}).text()
