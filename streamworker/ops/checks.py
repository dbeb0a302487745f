"""What a check of `doctor` comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streamworker.store.connection import Argument
from streamworker.store.scripts import Call


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what to do about it ('' when all is well)."""

    check: str
    severity: Severity
    found: str
    advice: str = ""
    #: Commands and scripts that put it right and cannot harm, for `doctor --fix`.
    fixes: tuple[tuple[Argument, ...] | Call, ...] = ()

    def json(self) -> dict[str, Any]:
        """A row of `doctor --json`."""
        return {
            "check": self.check,
            "severity": str(self.severity),
            "found": self.found,
            "advice": self.advice or None,
            "fixable": bool(self.fixes),
        }


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Severity.OK, found)


def warning(
    check: str, found: str, advice: str, fixes: Sequence[tuple[Argument, ...] | Call] = ()
) -> Finding:
    """It works, and may hurt one day."""
    return Finding(check, Severity.WARNING, found, advice, tuple(fixes))


def problem(check: str, found: str, advice: str) -> Finding:
    """Jobs may be lost, or do not run."""
    return Finding(check, Severity.PROBLEM, found, advice)
