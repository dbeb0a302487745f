"""The points at which a process can be killed around its calls to Redis."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Step(StrEnum):
    """Where in a call."""

    BEFORE = "before"  # nothing was sent
    SENT = "sent"  # Redis executes it, and nobody hears the answer
    ANSWERED = "answered"  # the answer is there, and nobody has used it


class Role(StrEnum):
    """Whose process dies."""

    WORKER = "worker"
    LEAVING = "leaving"  # a worker that was told to stop
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Point:
    """One place: in the `nth` call of this name, at this step."""

    role: Role
    call: str
    step: Step
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.role} {self.call} {self.step}" + (f" {self.nth}" if self.nth > 1 else "")


#: The calls of a process by its role, as `seam.name_of` names them.
CALLS: dict[Role, tuple[str, ...]] = {
    Role.WORKER: (
        "publish",
        "session",
        "exchange claim",
        "exchange mark",
        "exchange settle",
        "heartbeat",
        "xreadgroup",
        "elect",
        "promote",
        "recover",
        "settle",  # of what a sweep found dead
        "scan",
        "repair",
    ),
    Role.LEAVING: ("exchange release", "xpending", "forget"),
    Role.CLIENT: ("hmget", "enqueue", "cancel", "watch", "blpop"),
}
POINTS = tuple(Point(role, call, step) for role, calls in CALLS.items() for call in calls for step in Step)
#: Further calls of the same name, where the second or third finds another state. One that does not come,
#: since two outcomes went in one call, is none.
LATER = tuple(
    Point(role, call, step, nth)
    for role, call, numbers in (
        (Role.WORKER, "exchange claim", (2,)),
        (Role.WORKER, "exchange settle", (2, 3)),
        (Role.WORKER, "heartbeat", (2, 4)),
        (Role.WORKER, "promote", (3, 9)),
        (Role.WORKER, "recover", (7, 20, 40)),
        (Role.WORKER, "xreadgroup", (2,)),
        (Role.CLIENT, "enqueue", (2, 3)),
        (Role.CLIENT, "watch", (2,)),
    )
    for nth in numbers
    for step in Step
)
