"""The policy in force for a job, and where each part of it comes from."""

from __future__ import annotations

from streamworker.core import durations
from streamworker.core.gates import GateKind
from streamworker.ops.explain.answer import Rule
from streamworker.ops.explain.scene import Scene, said_by
from streamworker.ops.tune import spoken

TASK, OPERATOR, PRODUCER = "its task, as workers published it", "an operator", "its producer"


def effective(scene: Scene) -> list[Rule]:
    """One rule a line; what is not known is left out."""
    record, declared = scene.record, scene.declared
    rules = []
    if declared is not None:
        routed = "its task" if declared.lane == record.lane else "its producer or a rule of the router"
        rules += [
            Rule("lane", record.lane, routed),
            Rule("retry", declared.retry or "-", TASK),
            Rule("timeout", durations.format_ms(round(declared.timeout * 1000)), TASK),
            Rule("starts", f"{record.starts} of {record.number('ms') or declared.max_starts}", TASK),
        ]
    if (deadline := record.number("dl")) is not None:
        rules.append(Rule("deadline", scene.until(deadline), PRODUCER))
    for name, figures in _gates(record.text("ga") or ""):
        rules.append(_gate(scene, name, figures))
    for scope in (f"lane:{record.lane}", f"task:{record.task}", f"tenant:{record.text('tn')}"):
        if scope in scene.pauses:
            rules.append(Rule(scope, scene.pauses[scope].state, said_by(scene.pauses[scope])))
    return rules


def _gates(line: str) -> list[tuple[str, list[str]]]:
    """Name, and figures and limit if there are any, of each gate of a record's `ga`."""
    words = [word.split("|") for word in line.split(" ")[1:]]
    return [(name, rest) for name, *rest in words]


def _gate(scene: Scene, name: str, rest: list[str]) -> Rule:
    kind = name.partition(":")[0]
    figures = rest[0] if rest else ""
    for known in (name, rest[1] if len(rest) > 1 else ""):
        limit = scene.limits.get(known)
        if limit is not None and limit["set"]:
            return Rule(name, spoken(kind, limit["set"]) or "-", f"{OPERATOR}: streamworker limits")
    if kind not in (GateKind.RATE, GateKind.CONCURRENCY):
        return Rule(name, "one at a time" if kind == GateKind.ENTITY else "open while it is well", TASK)
    limit = scene.limits.get(rest[1] if len(rest) > 1 else name) or {}
    return Rule(name, spoken(kind, limit.get("in_force") or figures) or "-", TASK)
