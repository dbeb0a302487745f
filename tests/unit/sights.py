"""What the runbook may look at, laid out by hand, and what its diagnosis says of it in short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamworker.ops.dlq.causes import Cause
from streamworker.ops.overload import Drain, Rate
from streamworker.ops.runbook import Kind, Step
from streamworker.ops.runbook.answer import Diagnosis
from streamworker.ops.runbook.sight import Crowd, Held, Letters, Retries, Service, Sight
from streamworker.ops.top import LaneRow
from streamworker.ops.tune import Pause

NOON = 1_784_894_400_000
ANN = "ann@ops"
HUNDRED = Rate(100, 1000, 100)
HOSTILE = "\x1b]0;owned\x07`rm`|$(x)"


def row(lane: str, **figures: Any) -> LaneRow:
    """A lane in which nothing waits, unless said otherwise."""
    quiet: dict[str, Any] = {
        "ready": 0, "parked": 0, "scheduled": 0, "in_flight": 2, "oldest": None, "target": 10.0,
        "paused": False, "pressure": "ok", "came_in": 5.0, "went_out": 5.0,
    }  # fmt: skip
    return LaneRow(lane=lane, **(quiet | figures))


def backlog(depth: int, *, on: bool = True, rate: Rate = HUNDRED, paused: bool = False, **more: Any) -> Drain:
    lanes: dict[str, tuple[int, int | None]] = {"normal": (depth, 60_000)} if depth else {}
    return Drain(on, rate, HUNDRED, more.get("set"), paused, lanes)


LATE = row("normal", ready=4000, oldest=90.0, came_in=80.0, went_out=20.0)
URGENT = row("priority", ready=50, oldest=30.0, came_in=5.0, went_out=2.0)
QUIET = Sight(
    app="shop",
    at=NOON,
    lanes=(row("normal"), row("priority")),
    workers=2,
    slots=32,
    least=16,
    serving={"normal": 2, "priority": 2},
    drain=backlog(0),
    services=(Service("carrier", frozenset({"ship"}), ok=100, failed=1, running=2, limit=20),),
)


def words(diagnosis: Diagnosis, step: Step, *kinds: Kind) -> list[str]:
    """The commands of a step, without the app and the reason."""
    found = []
    for command in diagnosis.told(step).of(*(kinds or (Kind.CHANGE,))):
        said = list(command.words)
        for option in ("--reason", "--app"):
            if option in said:
                place = said.index(option)
                del said[place : place + 2]
        found.append(" ".join(said))
    return found


def why(diagnosis: Diagnosis) -> dict[str, str]:
    return {str(told.step): told.why for told in diagnosis.steps}


def pause(scope: str, **more: Any) -> Pause:
    return Pause(**({"scope": scope, "state": "paused", "until": None, "by": ANN, "since": NOON,
                     "reason": "a deploy"} | more))  # fmt: skip


def cause(task: str, code: str, count: int, error: str = "Boom: no") -> Cause:
    return Cause(task, "persistent", code, count, NOON, NOON, error, ["01a22d35-48c5-7000-ab2c-b8855784618b"])


def service(**facts: Any) -> Service:
    return Service("carrier", frozenset({"ship"}), **facts)


def worst(name: str) -> Sight:
    """Everything is wrong, and all names are that name."""
    return replace(
        QUIET,
        lanes=(LATE, URGENT),
        crowds={"normal": Crowd({name: 3900}, {name: 3900})},
        services=(Service(name, frozenset({name}), failed=50),),
        retries=Retries(100, 100, {(name, name): 90}),
        letters=Letters(500, 4.0, (cause(name, name, 480, name),)),
        held=(Held(f"{name} is paused", name, name, ("resume", f"task:{name}")),),
    )
