"""The policy in force for a job, and where each part of it comes from."""

from __future__ import annotations

from streamworker.core import durations
from streamworker.core.gates import GateKind, words_of
from streamworker.core.lane import BACKLOG
from streamworker.core.overrides import EVERY_TASK
from streamworker.ops.explain.answer import Rule
from streamworker.ops.explain.scene import Scene, said_by
from streamworker.ops.history import iso
from streamworker.ops.tune import spoken
from streamworker.store.manifest import Declaration

TASK, LANE, PRODUCER = "its task, as workers published it", "its lane, as workers declared it", "its producer"


def effective(scene: Scene) -> list[Rule]:
    """One rule a line; what is not known is left out."""
    record, declared = scene.record, scene.declared
    rules = []
    if declared is not None:
        routed = (
            "its task"
            if declared.lane == record.lane
            else "its producer, a rule of the router, or its task as it was"
        )
        rules += [
            Rule("lane", record.lane, routed),
            Rule("retry", declared.retry or "-", _source(declared, "retry")),
            Rule(
                "timeout",
                durations.format_ms(round(declared.timeout * 1000)),
                _source(declared, "timeout"),
            ),
            Rule("starts", f"{record.starts} of {record.number('ms') or declared.max_starts}", TASK),
        ]
    rules += _slots(scene)
    for task in (record.task, EVERY_TASK):
        if ("retries", task) in scene.settings:
            rules.append(_set(scene, "retries", "retries", task))
            break
    if (deadline := record.number("dl")) is not None:
        # As far as can be told: a producer may have asked for what the task declares.
        own = declared is not None and deadline - (record.number("at") or 0) == declared.deadline_ms
        over = deadline <= scene.now
        when = f"{scene.ago(deadline)}, at {iso(deadline)}" if over else scene.until(deadline)
        rules.append(Rule("deadline", when, TASK if own else PRODUCER))
    for name, figures, limit in words_of(record.text("ga") or ""):
        rules.append(_gate(scene, name, figures, limit))
    for scope in (f"lane:{record.lane}", f"task:{record.task}", f"tenant:{record.text('tn')}"):
        if scope in scene.pauses:
            rules.append(Rule(scope, scene.pauses[scope].state, said_by(scene.pauses[scope])))
    if record.entry is not None and record.entry[0] == "b" and ("drain", BACKLOG) in scene.settings:
        rules.append(_set(scene, "drain", "drain", BACKLOG))
    for scope in (f"lane:{record.lane}", f"tenant:{record.text('tn')}"):
        if ("throttle", scope) in scene.settings:
            rules.append(_set(scene, f"throttle {scope}", "throttle", scope))
    return rules


def _set(scene: Scene, what: str, topic: str, name: str) -> Rule:
    """What an operator has set, as it stands."""
    setting = scene.settings[topic, name]
    until = "" if setting.until is None else f", {scene.until(setting.until)} no more"
    return Rule(what, setting.spoken(), f"an operator, {said_by(setting)}{until}")


def _source(declared: Declaration, what: str) -> str:
    return LANE if what in declared.of_lane else TASK


def _slots(scene: Scene) -> list[Rule]:
    found = scene.slots.get(scene.record.lane)
    if found is None or found.reserved is None or found.weight is None:
        return []
    value = f"{found.reserved} reserved, weight {found.weight}"
    if found.set is None:
        return [Rule("slots", value, LANE)]
    return [Rule("slots", value, _set(scene, "slots", "slots", scene.record.lane).source)]


def _gate(scene: Scene, name: str, figures: str, limit: str) -> Rule:
    kind = name.partition(":")[0]
    breaker = scene.breakers.get(name)
    if breaker is not None and breaker.by is not None:
        until = "" if breaker.until is None else f", {scene.until(breaker.until)} no more"
        why = "" if breaker.reason in ("", "-") else f": {breaker.reason}"
        return Rule(name, breaker.state, f"an operator, by {breaker.by} at {iso(breaker.since)}{why}{until}")
    for known in (name, limit):
        found = scene.limits.get(known)
        if ("limit", known) in scene.settings:
            return _set(scene, name, "limit", known)
        if found is not None and found["set"]:
            return Rule(name, spoken(kind, found["set"]) or "-", "an operator: streamworker limits")
    if kind not in (GateKind.RATE, GateKind.CONCURRENCY):
        return Rule(name, "one at a time" if kind == GateKind.ENTITY else "open while it is well", TASK)
    found = scene.limits.get(limit or name) or {}
    return Rule(name, spoken(kind, found.get("in_force") or figures) or "-", TASK)
