"""The policy in force for a job, and where each part of it comes from."""

from __future__ import annotations

from streamworker.core import durations
from streamworker.core.gates import GateKind, words_of
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
    for name, figures, limit in words_of(record.text("ga") or ""):
        rules.append(_gate(scene, name, figures, limit))
    for scope in (f"lane:{record.lane}", f"task:{record.task}", f"tenant:{record.text('tn')}"):
        if scope in scene.pauses:
            rules.append(Rule(scope, scene.pauses[scope].state, said_by(scene.pauses[scope])))
    return rules


def _gate(scene: Scene, name: str, figures: str, limit: str) -> Rule:
    kind = name.partition(":")[0]
    for known in (name, limit):
        found = scene.limits.get(known)
        if found is not None and found["set"]:
            return Rule(name, spoken(kind, found["set"]) or "-", f"{OPERATOR}: streamworker limits")
    if kind not in (GateKind.RATE, GateKind.CONCURRENCY):
        return Rule(name, "one at a time" if kind == GateKind.ENTITY else "open while it is well", TASK)
    found = scene.limits.get(limit or name) or {}
    return Rule(name, spoken(kind, found.get("in_force") or figures) or "-", TASK)
