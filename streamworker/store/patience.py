"""How a producer waits for room: at least as long as it was told, longer each time, and never in step."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from streamworker.core.errors import EnqueueRejected
from streamworker.core.states import Disposition
from streamworker.store.caller import backoff
from streamworker.store.placing import Placed
from streamworker.store.scripts import NewJob

#: What is told is stretched by up to so much, so that those who were refused together come back apart.
SPREAD = 0.5


class Patience:
    """Jobs that are sent again for some seconds while they are refused. One that was refused left nothing."""

    def __init__(self, jobs: Sequence[NewJob], seconds: float) -> None:
        self._jobs = jobs
        self._until = time.monotonic() + seconds
        self._attempts = 0
        self._left: Sequence[int] = range(len(jobs))
        self._placed: dict[int, Placed] = {}

    @property
    def jobs(self) -> list[NewJob]:
        """Those to be sent now."""
        return [self._jobs[i] for i in self._left]

    @property
    def placed(self) -> list[Placed]:
        """What became of each, in order."""
        return [self._placed[i] for i in range(len(self._jobs))]

    def take(self, placed: Sequence[Placed]) -> float | None:
        """Note what became of `jobs`: seconds to wait before sending again, None when that is all."""
        self._placed.update(zip(self._left, placed, strict=True))
        self._left = [i for i in self._left if self._placed[i].disposition is Disposition.REJECTED]
        if not self._left:
            return None
        return self._pause(min(self._placed[i].retry_after or 0.0 for i in self._left))

    def refuse(self, error: EnqueueRejected) -> float:
        """`jobs` were refused as a whole: seconds to wait. Raises the error when patience is over."""
        pause = self._pause(error.retry_after or 0.0)
        if pause is None:
            raise error
        return pause

    def _pause(self, retry_after: float) -> float | None:
        self._attempts += 1
        pause = max(retry_after * random.uniform(1.0, 1.0 + SPREAD), backoff(self._attempts))
        return None if time.monotonic() + pause > self._until else pause
