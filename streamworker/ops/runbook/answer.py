"""What the diagnosis comes to: nine steps, what is seen at each, and the commands that help."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from streamworker.core.text import visible
from streamworker.ops.runbook.sight import Sight
from streamworker.ops.runbook.whys import WHYS, Step

AIM = "Restore stability first, throughput later: cut the supply before you add workers."


TITLES: Mapping[Step, str] = {
    Step.LANE: "Find the lane",
    Step.DEPENDENCY: "Check the dependency",
    Step.THROTTLE: "Throttle the producers",
    Step.CRITICAL: "Favour the critical lane",
    Step.DRAIN: "Drain bit by bit",
    Step.RETRIES: "Calm the retries",
    Step.LETTERS: "Inspect the dead letters",
    Step.REPLAY: "Validate before you replay",
    Step.NOTE: "Write down what was decided",
}


class Kind(StrEnum):
    """What a command does, and so who may run it when."""

    LOOK = "look"  # changes nothing
    CHANGE = "change"  # helps now; `--yes` runs it
    LATER = "later"  # takes back what was set, when all is over: only by hand


class State(StrEnum):
    """Whether there is something to do at a step."""

    OK = "ok"
    LOOK = "look"
    ACT = "act"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ours: its words after `streamworker`, and why it helps."""

    kind: Kind
    words: tuple[str, ...]
    why: str

    @property
    def line(self) -> str:
        """As it can be typed into a shell; control characters are made visible."""
        return visible(shlex.join(("streamworker", *self.words)))

    def json(self) -> dict[str, Any]:
        return {
            "kind": str(self.kind),
            "argv": ["streamworker", *self.words],
            "line": self.line,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Told:
    """One step: `why` is a word for machines, `says` are sentences for people."""

    step: Step
    state: State
    why: str
    says: tuple[str, ...]
    commands: tuple[Command, ...] = ()

    def __post_init__(self) -> None:
        if self.why not in WHYS[self.step]:
            raise ValueError(f"step {self.step} comes to none of {', '.join(WHYS[self.step])}: {self.why!r}")

    def of(self, *kinds: Kind) -> list[Command]:
        """Its commands of these kinds."""
        return [each for each in self.commands if each.kind in kinds]

    def json(self) -> dict[str, Any]:
        return {
            "step": str(self.step),
            "number": self.step.number,
            "title": TITLES[self.step],
            "state": str(self.state),
            "why": self.why,
            "says": list(self.says),
            "commands": [each.json() for each in self.commands],
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All nine steps, by what was seen."""

    sight: Sight
    critical: str | None  # the lane that is favoured; None: there is no lane
    steps: tuple[Told, ...] = field(default=())

    @property
    def stable(self) -> bool:
        """There is nothing to do but, perhaps, to look."""
        return not any(told.state is State.ACT for told in self.steps)

    def told(self, step: Step) -> Told:
        """What is said at a step."""
        return self.steps[step.number - 1]

    def json(self) -> dict[str, Any]:
        """The stable shape of `runbook backlog --json`."""
        return {
            "app": self.sight.app,
            "aim": AIM,
            "stable": self.stable,
            "critical_lane": self.critical,
            "figures": self.sight.figures(),
            "steps": [told.json() for told in self.steps],
        }


def nameable(*names: str) -> bool:
    """Whether names can stand in a command line: one printable word each, and no option."""
    return all(
        name and name.isprintable() and name == "".join(name.split()) and not name.startswith("-")
        for name in names
    )


def listed(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
