"""What must hold of the transition log alone, whoever wrote it and whatever the model believes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from streamworker.core.states import HELD, TERMINAL, TRANSITIONS, Status
from streamworker.store.events import Transition

#: Ends of an attempt that are recorded.
RECORDED = TERMINAL | {Status.RETRY_SCHEDULED}


@dataclass(slots=True)
class Life:
    """One job as its lines tell it."""

    status: Status
    epoch: int = 0
    version: int = 1
    attempt: int = 0  # of the last claim
    recorded: set[tuple[int, int]] = field(default_factory=set)  # epoch, attempt


class History:
    """Reads the log line by line and says what is wrong with it."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self._fence = 0  # of the last claim
        self._ended: set[tuple[str, int]] = set()

    def read(self, lines: Iterable[Transition]) -> Iterator[str]:
        for line in lines:
            for wrong in self._step(line):
                yield f"{wrong}: {line}"

    def _step(self, line: Transition) -> Iterator[str]:
        life = self.lives.get(line.job_id)
        if life is None or line.from_status is None:
            if life is not None or line.from_status is not None or (line.epoch, line.version) != (0, 1):
                yield "a job must come into being once, in its first line"
            self.lives[line.job_id] = Life(line.to_status)
            return
        moved = line.reason in ("drained", "merged") and line.from_status == line.to_status  # no edge
        if (line.from_status, line.to_status) not in TRANSITIONS and not moved:
            yield "an illegal edge"
        if line.from_status != life.status:
            yield f"the job was {life.status}"
        if line.version != life.version + 1:
            yield f"the version does not follow {life.version}"
        replayed = line.from_status == Status.FAILED_TERMINAL
        if line.epoch != life.epoch + replayed:
            yield f"the epoch does not follow {life.epoch}"
        if line.to_status == Status.CLAIMED:
            if line.fence <= self._fence:
                yield f"the fence must grow beyond {self._fence}"
            self._fence = line.fence
            life.attempt = line.attempt
        elif line.from_status in HELD:
            yield from self._end(life, line)
        life.status, life.epoch, life.version = line.to_status, line.epoch, line.version

    def _end(self, life: Life, line: Transition) -> Iterator[str]:
        """The end of an attempt: recorded once, and once for its fence."""
        if line.to_status in HELD:
            return
        if (line.job_id, line.fence) in self._ended:
            yield "this fence came to something before"
        self._ended.add((line.job_id, line.fence))
        if line.to_status not in RECORDED or line.attempt != life.attempt:
            return  # given back: not charged
        if (line.epoch, line.attempt) in life.recorded:
            yield "this attempt has an outcome already"
        life.recorded.add((line.epoch, line.attempt))
