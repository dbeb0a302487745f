"""What operators set of retries at run time: a word for each task, as scripts keep it and workers read it.

A list of settings is text with a line for each, `topic name word by since reason`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self, TypeVar

from streamworker.core.errors import InvalidArgument, check_code
from streamworker.core.template import check_task_name

T = TypeVar("T")

#: Bounds of a multiplier: beyond them it is a typing error.
LEAST_MULTIPLY, MOST_MULTIPLY = 0.1, 100.0
#: Error codes whose retries may be stopped, of one task.
MOST_CODES = 20
#: Stands for every task that has no setting of its own.
EVERY_TASK = "*"


@dataclass(frozen=True, slots=True)
class RetryOverride:
    """What holds beside a task's retry policy. `RetryOverride()` changes nothing."""

    #: Factor of the policy's own delays; what a server asked for stays as it is.
    multiply: float = 1.0
    #: Spread in place of the policy's; None: the policy's.
    jitter: float | None = None
    #: Error codes that are not tried again.
    stop: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Raises InvalidArgument."""
        if not (math.isfinite(self.multiply) and LEAST_MULTIPLY <= self.multiply <= MOST_MULTIPLY):
            raise InvalidArgument(
                "multiply", self.multiply, f"is no number from {LEAST_MULTIPLY:g} to {MOST_MULTIPLY:g}"
            )
        if self.jitter is not None and not 0 <= self.jitter < 1:
            raise InvalidArgument("jitter", self.jitter, "is no number from 0 to below 1")
        if len(self.stop) > MOST_CODES:
            raise InvalidArgument("stop-code", len(self.stop), f"are more codes than {MOST_CODES}")
        for code in self.stop:
            check_code(code)

    @property
    def word(self) -> str:
        """Such as `multiply=3.0,jitter=0.3,stop=http_503+timeout`; '' if it changes nothing."""
        said = [f"multiply={self.multiply!r}"] if self.multiply != 1 else []
        said += [f"jitter={self.jitter!r}"] if self.jitter is not None else []
        said += [f"stop={'+'.join(sorted(self.stop))}"] if self.stop else []
        return ",".join(said)

    @classmethod
    def parse(cls, word: str) -> Self:
        """From `word`. Raises ValueError for what is none, InvalidArgument for figures out of bounds."""
        facts = dict([each.split("=", 1) for each in word.split(",")]) if word else {}
        unknown = facts.keys() - {"multiply", "jitter", "stop"}
        if unknown:
            raise ValueError(f"{word!r} says what nobody knows: {', '.join(sorted(unknown))}")
        jitter = facts.get("jitter")
        return cls(
            float(facts.get("multiply", 1)),
            None if jitter is None else float(jitter),
            frozenset(facts["stop"].split("+")) if "stop" in facts else frozenset(),
        )

    def spoken(self) -> str:
        """As people read it."""
        said = [f"back-off times {self.multiply:g}"] if self.multiply != 1 else []
        said += [f"jitter {self.jitter:g}"] if self.jitter is not None else []
        said += [f"no retry of {', '.join(sorted(self.stop))}"] if self.stop else []
        return "; ".join(said) or "as declared"


@dataclass(frozen=True, slots=True)
class RetryOverrides:
    """Those of all tasks."""

    by_task: Mapping[str, RetryOverride] = field(default_factory=dict)

    def of(self, task: str) -> RetryOverride | None:
        """What holds for a task: its own, else that of every task; None: nothing is set."""
        return self.by_task.get(task) or self.by_task.get(EVERY_TASK)

    @classmethod
    def read(cls, text: str, *, report: Callable[[str], None] = lambda problem: None) -> Self:
        """From a list. `report` is told of lines that cannot be read, such as those of a newer version."""
        return cls(read_list(text, RetryOverride.parse, report))


def check_retries_name(name: str) -> str:
    """Return the name of a task, or `*` for every task. Raises InvalidArgument."""
    return name if name == EVERY_TASK else check_task_name(name)


def read_list(text: str, parse: Callable[[str], T], report: Callable[[str], None]) -> dict[str, T]:
    """What a list says, by name; `report` is told of lines that `parse` refuses."""
    found = {}
    for line in text.splitlines():
        try:
            _, name, word, *_ = line.split(" ", 3)
            found[name] = parse(word)
        except (ValueError, InvalidArgument) as error:
            report(f"{line[:80]!r} is left out: {error}")
    return found
