"""Which dead letters are meant."""

from __future__ import annotations

from dataclasses import dataclass

from streamworker.ops.dlq.letters import DeadLetter


@dataclass(frozen=True, slots=True)
class Filters:
    """Which letters are meant; None lets everything through."""

    task: str | None = None
    code: str | None = None
    lane: str | None = None
    tenant: str | None = None

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.task, self.code, self.lane, self.tenant))

    def match(self, letter: DeadLetter) -> bool:
        return (
            self.task in (None, letter.task)
            and self.code in (None, letter.error_code)
            and self.lane in (None, letter.lane)
            and self.tenant in (None, letter.tenant)
        )
