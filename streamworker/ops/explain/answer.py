"""What `explain` comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """Why, in one word for machines and sentences for people, and the commands that help."""

    why: str
    says: list[str]
    do: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the policy in force, and where it comes from."""

    what: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer about one job."""

    id: str
    status: str
    task: str | None
    lane: str | None
    answer: Answer
    policy: list[Rule] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """The stable shape of `explain --json`."""
        return {
            "id": self.id,
            "status": self.status,
            "task": self.task,
            "lane": self.lane,
            "why": self.answer.why,
            "says": self.answer.says,
            "do": self.answer.do,
            "facts": self.answer.facts,
            "policy": [
                {"what": rule.what, "value": rule.value, "source": rule.source} for rule in self.policy
            ],
        }
