"""What operators set of a lane's slots at run time, as the scripts keep it and workers read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from streamworker.core.errors import InvalidArgument
from streamworker.core.lane import MAX_RESERVED, MAX_WEIGHT, Lane
from streamworker.core.overrides import read_list


@dataclass(frozen=True, slots=True)
class SlotsOverride:
    """Another `reserved` and `weight` of a lane; None: as it is declared."""

    reserved: int | None = None
    weight: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidArgument."""
        if self.reserved is not None and not 0 <= self.reserved <= MAX_RESERVED:
            raise InvalidArgument("reserved", self.reserved, f"is no number from 0 to {MAX_RESERVED}")
        if self.weight is not None and not 1 <= self.weight <= MAX_WEIGHT:
            raise InvalidArgument("weight", self.weight, f"is no number from 1 to {MAX_WEIGHT}")

    @property
    def word(self) -> str:
        """`reserved,weight`, with - for what is declared."""
        return ",".join("-" if each is None else str(each) for each in (self.reserved, self.weight))

    @classmethod
    def parse(cls, word: str) -> Self:
        """From `word`. Raises ValueError for what is none, InvalidArgument for figures out of bounds."""
        reserved, weight = (None if each == "-" else int(each) for each in word.split(","))
        return cls(reserved, weight)

    def over(self, lane: Lane) -> Lane:
        """The lane with these figures."""
        return replace(
            lane,
            reserved=lane.reserved if self.reserved is None else self.reserved,
            weight=lane.weight if self.weight is None else self.weight,
        )

    def spoken(self) -> str:
        """As people read it."""
        said = [f"{self.reserved} reserved"] if self.reserved is not None else []
        said += [f"weight {self.weight}"] if self.weight is not None else []
        return ", ".join(said) or "as declared"


def read_slots(
    text: str, *, report: Callable[[str], None] = lambda problem: None
) -> dict[str, SlotsOverride]:
    """Those of all lanes, from a list; as `RetryOverrides.read`."""
    return read_list(text, SlotsOverride.parse, report)


def in_force(lanes: Mapping[str, Lane], overrides: Mapping[str, SlotsOverride]) -> dict[str, Lane]:
    """The lanes of a worker with what is set for them."""
    return {name: overrides[name].over(lane) if name in overrides else lane for name, lane in lanes.items()}
