"""What the calls of dependencies came to, until the next exchange tells the breakers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from streamworker.flow.dependency import Result

#: Seconds after which they are told though no exchange has been sent meanwhile.
TOLD_WITHIN = 0.1
#: The results in the order in which an exchange takes them.
_RESULTS = tuple(Result)


class Calls:
    """Counts by dependency; those without a breaker are not counted."""

    def __init__(self, gates: Mapping[str, str], on_due: Callable[[], None]) -> None:
        """`gates`: the breaker's gate of each dependency that has one. `on_due`: it is time to tell."""
        self._gates = gates
        self._on_due = on_due
        self._counts: dict[str, dict[Result, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: They have waited long enough.
        self.due = False

    def count(self, dependency: str, result: Result) -> None:
        """One call ended."""
        if dependency not in self._gates:
            return
        counts = self._counts.setdefault(dependency, dict.fromkeys(_RESULTS, 0))
        counts[result] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOLD_WITHIN, self._tell)

    def _tell(self) -> None:
        self._timer = None
        if self._counts:
            self.due = True
            self._on_due()

    def take(self) -> str:
        """The `calls` of an exchange: a line `gate ok errors timeouts` for each.

        They are told once. With an exchange that is lost they are lost, and a breaker opens a little later;
        told twice, they could open it for nothing.
        """
        self.due = False
        if not self._counts:
            return ""
        counts, self._counts = self._counts, {}
        return "\n".join(
            " ".join((self._gates[dependency], *(str(by[result]) for result in _RESULTS)))
            for dependency, by in counts.items()
        )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
