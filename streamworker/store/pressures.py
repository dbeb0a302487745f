"""What a producer has heard of the pressure in the lanes; asked for only where a rule wants to know."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from streamworker.core.lane import Pressure
from streamworker.core.router import Router

FIELD = "pressure:"
#: Seconds after which a producer asks again. Keepers look once a second.
FRESH = 1.0


class Pressures:
    """The level of each lane, as it was read last."""

    def __init__(self) -> None:
        self.levels: Mapping[str, Pressure] = {}
        self._until = 0.0

    def wanted(self, router: Router) -> list[str]:
        """The fields of `policies` to read before this router decides; none if it need not know."""
        if not router.by_pressure or time.monotonic() < self._until:
            return []
        return [FIELD + lane for lane in router.lanes]

    def note(self, router: Router, values: Sequence[bytes | None]) -> None:
        """Keep what was read. A level that this version does not know counts as none."""
        self.levels = {
            lane: Pressure(value.decode())
            for lane, value in zip(router.lanes, values, strict=True)
            if value is not None and value.decode() in list(Pressure)
        }
        self._until = time.monotonic() + FRESH
