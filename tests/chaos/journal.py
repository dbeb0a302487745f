"""The journals of an app like `chaos_jobs`: what handlers wrote themselves, a file a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.history import Told


@dataclass(frozen=True, slots=True)
class Mark:
    """One line. `told` is None for a start; `number` is that of the worker process in its run."""

    told: Told | None
    job_id: str
    attempt: int
    fence: int
    at: float
    number: int
    #: Gates by which the handler runs.
    holds: tuple[str, ...] = ()


@dataclass(slots=True)
class Journals:
    """The files of one run; `read` goes on where it stopped."""

    directory: Path
    #: Starts without an end so far, by job and fence: what runs, or died.
    running: dict[tuple[str, int], Mark] = field(default_factory=dict)
    _read: dict[Path, int] = field(default_factory=dict)

    def path(self, number: int) -> Path:
        """The journal of the worker process with this number."""
        return self.directory / f"{number}.journal"

    def read(self) -> list[Mark]:
        """What was written since the last call; lines of one process are in order."""
        found = [mark for path in sorted(self.directory.glob("*.journal")) for mark in self._lines(path)]
        for mark in found:
            if mark.told is None:
                self.running[mark.job_id, mark.fence] = mark
            else:
                self.running.pop((mark.job_id, mark.fence), None)
        return found

    def _lines(self, path: Path) -> Iterator[Mark]:
        offset = self._read.get(path, 0)
        with path.open("rb") as journal:
            journal.seek(offset)
            data = journal.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = offset + len(whole)
        number = int(path.name.partition(".")[0])
        for line in whole.decode().splitlines():
            what, job_id, attempt, fence, at, *holds = line.split(" ")
            told = None if what == "start" else Told(what)
            yield Mark(told, job_id, int(attempt), int(fence), int(at) / 1e9, number, tuple(holds))
