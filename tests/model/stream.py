"""A lane's stream with its consumer group, as far as the protocol relies on Redis."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


def order(entry: str) -> tuple[int, int]:
    """Entry ids in the order of the stream."""
    ms, _, sequence = entry.partition("-")
    return int(ms), int(sequence)


@dataclass(slots=True)
class Stream:
    """What is in the stream, who was given what, and how far the group has read."""

    entries: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # id -> job id, envelope
    pending: dict[str, str] = field(default_factory=dict)  # id -> consumer
    group: bool = False
    last: str = "0-0"  # the last id that was delivered

    def undelivered(self, upto: str | None = None) -> list[str]:
        """The entries that the group has not read, as far as `upto`."""
        return [
            entry
            for entry in sorted(self.entries, key=order)
            if order(self.last) < order(entry) and (upto is None or order(entry) <= order(upto))
        ]

    def deliver(self, consumer: str, upto: str) -> list[str]:
        """XREADGROUP as far as `upto`; the ids that were given. Makes a missing group anew (R9)."""
        self.group = True
        given = self.undelivered(upto)
        for entry in given:
            self.pending[entry] = consumer
        self.last = upto
        return given

    def give(self, entry: str, consumer: str) -> None:
        """XCLAIM without FORCE: drops an entry that was deleted (R1), ignores one that is not pending."""
        if entry in self.pending:
            if entry in self.entries:
                self.pending[entry] = consumer
            else:
                del self.pending[entry]

    def sweep(self, consumer: str, ripe: Collection[str]) -> list[str]:
        """XAUTOCLAIM of the entries that were idle long enough; deleted ones are dropped (R1)."""
        swept = []
        for entry in sorted(self.pending, key=order):
            if entry not in self.entries:
                del self.pending[entry]
            elif entry in ripe:
                self.pending[entry] = consumer
                swept.append(entry)
        return swept

    def remove(self, entry: str) -> None:
        """XACK and XDEL."""
        self.entries.pop(entry, None)
        self.pending.pop(entry, None)

    def destroy_group(self) -> None:
        """XGROUP DESTROY: everything will be delivered again."""
        self.pending.clear()
        self.group = False
        self.last = "0-0"
