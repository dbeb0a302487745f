"""The job waits at a gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamworker.core.gates import GateKind, words_of
from streamworker.ops import gates
from streamworker.ops.explain.answer import Answer
from streamworker.ops.explain.scene import Scene, said_by
from streamworker.ops.history import iso

#: Waiters that are counted at most.
_COUNTED = 10_000


async def answer(scene: Scene, name: str) -> Answer:
    """At which gate, behind how many, and what opens it."""
    found = await _at(scene, name)
    if scene.workers:
        return found
    says = [*found.says, "No worker is alive to run it."]
    return replace(found, says=says, do=[*found.do, "streamworker run MODULE:APP"])


async def _at(scene: Scene, name: str) -> Answer:
    record = scene.record
    found = await gates.gate(scene.queue, name)
    ahead = await _ahead(scene, name)
    others = f"{ahead or 'nobody'} {'waits' if ahead < 2 else 'wait'} before it"
    facts: dict[str, Any] = {"gate": name, "ahead": ahead, "waiting": sum(found["waiting"].values())}
    says = [f"It is parked at the gate {name}; {others}. It holds no slot, and no try was charged."]
    kind, _, rest = name.partition(":")
    if kind == GateKind.PAUSE:
        return _paused(scene, rest, says, facts)
    if f"lane:{record.lane}" in scene.pauses and scene.pauses[f"lane:{record.lane}"].state == "paused":
        return _paused(scene, f"lane:{record.lane}", says, facts)
    if kind == GateKind.BREAKER:
        return _broken(scene, name, says, facts)
    if kind == GateKind.RATE:
        due = await scene.queue.caller.command("ZSCORE", scene.queue.keys.timers, name)
        opens = None if due in (None, b"inf") else int(float(due))
        facts["opens_at"] = iso(opens)
        limit = _limit_name(scene, name)
        if opens is None:
            says.append("The rate has no token left.")
        elif opens > scene.now:
            says.append(f"The rate has no token left; the next comes {scene.until(opens)}.")
        else:
            says.append(f"The next token came {scene.ago(opens)}; a worker lets in who waited longest.")
        return Answer("rate", says, [f"streamworker limits set {limit} RATE"], facts)
    facts["holders"] = [each["id"] for each in found["holders"]]
    holders = found["holders"]
    if kind == GateKind.ENTITY:
        if holders:
            first = holders[0]
            says.append(
                f"Job {first['id']} of task {first['task']} has it"
                + (f", on worker {first['worker']}." if first["worker"] else ", and waits for a worker.")
            )
        return Answer(
            "entity", says, [f"streamworker explain {facts['holders'][0]}"] if holders else [], facts
        )
    places = _places(scene, name)
    says.append(f"{len(holders)} of its {places} places are taken." if places else f"{len(holders)} hold it.")
    return Answer("concurrency", says, [f"streamworker gates {name}"], facts)


def _paused(scene: Scene, scope: str, says: list[str], facts: dict[str, Any]) -> Answer:
    pause = scene.pauses.get(scope)
    facts["scope"] = scope
    if pause is None:
        return Answer("opening", [*says, f"{scope} is open again: it moves within a second."], [], facts)
    facts |= {"by": pause.by, "since": iso(pause.since), "until": iso(pause.until), "reason": pause.reason}
    if pause.state != "paused":
        end = "" if pause.until is None else f", the last {scene.until(pause.until)}"
        says.append(f"{scope} was resumed; those that waited come in little by little{end}.")
        return Answer("ramp", says, [f"streamworker resume {scope} --at-once"], facts)
    end = "until somebody resumes it" if pause.until is None else f"for {scene.until(pause.until)[3:]}"
    says.append(f"{scope} is paused {said_by(pause)}, {end}.")
    return Answer("paused", says, [f"streamworker resume {scope}"], facts)


def _broken(scene: Scene, name: str, says: list[str], facts: dict[str, Any]) -> Answer:
    standing = scene.breakers.get(name)
    if standing is None:
        return Answer("opening", [*says, "Its breaker is closed again: it moves within a second."], [], facts)
    who = f"by {standing.by}" if standing.by else f"by the calls: {standing.reason}"
    until = "" if standing.until is None else f"; more is let in {scene.until(standing.until)}"
    facts |= {"state": str(standing.state), "since": iso(standing.since), "until": iso(standing.until)}
    says.append(
        f"The breaker of {standing.dependency} is {standing.state} since {iso(standing.since)}, {who}{until}."
    )
    return Answer("breaker", says, ["streamworker breakers"], facts)


async def _ahead(scene: Scene, name: str) -> int:
    """Waiters with an earlier place, in all lanes that are not paused."""
    command, keys = scene.queue.caller.command, scene.queue.keys
    own = await command("ZSCORE", keys.waiters(scene.record.lane, name), scene.record.job_id)
    if own is None:
        return 0
    text = await command("HGET", keys.waiting, name)
    count = 0
    for lane in (text or b"").decode().split()[::2]:
        pause = scene.pauses.get(f"lane:{lane}")
        if lane == scene.record.lane or pause is None or pause.state != "paused":
            count += int(await command("ZCOUNT", keys.waiters(lane, name), "-inf", f"({own.decode()}"))
    return min(count, _COUNTED)


def _places(scene: Scene, name: str) -> str | None:
    """How many may hold a concurrency."""
    known = {gate: (figures, limit) for gate, figures, limit in words_of(scene.record.text("ga") or "")}
    figures, limit = known.get(name, ("", ""))
    for each in (name, limit):
        if found := scene.limits.get(each):
            return str(found["in_force"])
    return figures or None


def _limit_name(scene: Scene, name: str) -> str:
    """Under which name `limits set` reaches this gate."""
    limits = {gate: limit for gate, _, limit in words_of(scene.record.text("ga") or "")}
    return limits.get(name) or name
