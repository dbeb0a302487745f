"""Dead letters by what killed them: where to begin when there are thousands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from streamworker.ops.dlq.filters import Filters
from streamworker.ops.dlq.letters import DeadLetter, letters
from streamworker.ops.history import iso
from streamworker.store.queue import Queue

#: Jobs that a cause names, the newest of it.
SAMPLES = 3


@dataclass(slots=True)
class Cause:
    """The letters of one task with the same class and code of error. Times are ms since the epoch."""

    task: str
    error_class: str
    error_code: str
    count: int = 0
    oldest: int = 0
    newest: int = 0
    error: str = ""  # of the newest
    samples: list[str] = field(default_factory=list)
    lanes: set[str] = field(default_factory=set)

    def add(self, letter: DeadLetter) -> None:
        """One more; the newest come first."""
        if not self.count:
            self.error, self.newest = letter.error, letter.dead_at
        self.count += 1
        self.oldest = letter.dead_at
        self.lanes.add(letter.lane)
        if len(self.samples) < SAMPLES:
            self.samples.append(letter.job_id)

    def json(self) -> dict[str, Any]:
        """The item of `dlq causes --json`."""
        return {
            "task": self.task,
            "error_class": self.error_class,
            "error_code": self.error_code,
            "count": self.count,
            "lanes": sorted(self.lanes),
            "oldest": iso(self.oldest),
            "newest": iso(self.newest),
            "error": self.error,
            "samples": self.samples,
        }


async def causes(queue: Queue, filters: Filters | None = None) -> list[Cause]:
    """All causes of what the filters let through, the most frequent first. Reads the whole stream."""
    found: dict[tuple[str, str, str], Cause] = {}
    filters = filters or Filters()
    async for letter in letters(queue, newest_first=True):
        if filters.match(letter):
            name = (letter.task, letter.error_class, letter.error_code)
            found.setdefault(name, Cause(*name)).add(letter)
    return sorted(found.values(), key=lambda cause: (-cause.count, cause.task, cause.error_code))
