"""Which dead letters are meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from urllib.parse import quote

from streamworker.ops.dlq.letters import DeadLetter


@dataclass(frozen=True, slots=True)
class Filters:
    """What a letter must be like, all of it; None lets everything through. Moments are ms since the epoch."""

    task: str | None = None
    code: str | None = None
    lane: str | None = None
    tenant: str | None = None
    entity: str | None = None
    error_class: str | None = None
    correlation_id: str | None = None
    #: Somewhere in the error or in what the producer sent, in capitals or not.
    text: str | None = None
    dead_before: int | None = None
    dead_after: int | None = None

    def __bool__(self) -> bool:
        return any(True for _ in self._given())

    def match(self, letter: DeadLetter) -> bool:
        """Whether this letter is meant. What is dear to look at comes last."""
        return (
            self.task in (None, letter.task)
            and self.code in (None, letter.error_code)
            and self.lane in (None, letter.lane)
            and self.tenant in (None, letter.tenant)
            and self.entity in (None, letter.entity)
            and self.error_class in (None, letter.error_class)
            and (self.dead_before is None or letter.dead_at < self.dead_before)
            and (self.dead_after is None or letter.dead_at >= self.dead_after)
            and (self.correlation_id is None or self.correlation_id == letter.correlation_id)
            and (self.text is None or self._has_text(letter))
        )

    def describe(self) -> str:
        """One word for the log, such as `task=pay;code=timeout`; `all` without any filter."""
        return ";".join(f"{name}={quote(str(value), safe='')}" for name, value in self._given()) or "all"

    def _given(self) -> Iterator[tuple[str, object]]:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                yield each.name, value

    def _has_text(self, letter: DeadLetter) -> bool:
        wanted = (self.text or "").casefold()
        sent = letter.envelope.decode("utf-8", "replace")
        return wanted in letter.error.casefold() or wanted in sent.casefold()
