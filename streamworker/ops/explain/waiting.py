"""Nobody holds the job: where it waits, for what, behind whom, and until when."""

from __future__ import annotations

from streamworker.core import durations
from streamworker.core.lane import BACKLOG
from streamworker.core.states import Status
from streamworker.ops.explain import lane, parked
from streamworker.ops.explain.answer import Answer
from streamworker.ops.explain.scene import Scene, said_by, span
from streamworker.ops.history import iso
from streamworker.ops.tune import OVERDUE


async def answer(scene: Scene, sample: float) -> Answer:
    """Why it waits. The first that holds: what ends it, its gate, its time, its place."""
    record = scene.record
    if record.text("bu") is not None:
        return _burial(scene)
    if (deadline := record.number("dl")) is not None and deadline <= scene.now:
        return _expiring(scene, deadline)
    if record.gate is not None:
        return await parked.answer(scene, record.gate)
    if record.entry is None:
        return await _scheduled(scene)
    kind, _ = record.entry
    if kind == "b":
        return await _deferred(scene)
    if kind == "t":
        return await _behind_tenant(scene)
    if kind == "q":
        return await _quarantined(scene)
    return await lane.answer(scene, sample)


def _burial(scene: Scene) -> Answer:
    reason, error_class, code = (scene.record.text("bu") or "- - -").split(" ", 2)
    waits = scene.last_move is not None and scene.last_move.reason == "burial_waits"
    says = [
        (
            f"It is to end as {code} ({error_class}), but an earlier attempt may have committed its effect: "
            "a worker looks for that in Postgres first."
        )
    ]
    if waits:
        says.append("Postgres cannot be asked at present; it is asked again every 30 s.")
    return Answer("burial_waits" if waits else "burial", says, [], {"code": code, "reason": reason})


def _expiring(scene: Scene, deadline: int) -> Answer:
    says = [f"Its deadline was {scene.ago(deadline)}: a worker ends it as expired as soon as it looks."]
    facts = {"deadline_at": iso(deadline)}
    if scene.workers:
        return Answer("expiring", says, ["streamworker doctor"], facts)
    return Answer("no_worker", [*says, "No worker is alive."], ["streamworker run MODULE:APP"], facts)


async def _due(scene: Scene, due: int | None, facts: dict[str, object]) -> Answer:
    late = "" if due is None else f" since {span(scene.now - due)}"
    says = [f"It is due{late}, and no worker has brought it back into its lane."]
    if not scene.workers:
        return Answer("no_worker", [*says, "No worker is alive."], ["streamworker run MODULE:APP"], facts)
    ramp = await scene.queue.caller.command("HGET", scene.queue.keys.sweep, OVERDUE)
    until = 0 if ramp is None else int(ramp.split()[0])
    if until > scene.now:
        says.append(f"Many were due at once; they come back little by little, the last {scene.until(until)}.")
        return Answer("ramp", says, [f"streamworker resume {OVERDUE} --at-once"], facts)
    return Answer("due", [*says, "A keeper does so ten times a second."], ["streamworker doctor"], facts)


async def _scheduled(scene: Scene) -> Answer:
    record = scene.record
    due = record.number("du")
    moved = scene.move_with("due")
    facts: dict[str, object] = {"due_at": iso(due), "attempt": record.attempt}
    error_class, _, code = (record.text("ec") or "").partition(" ")
    if due is None or due <= scene.now:
        return await _due(scene, due, facts)
    when = scene.until(due)
    retrying = record.status is Status.RETRY_SCHEDULED
    if moved is None and not retrying and record.starts:  # the log has forgotten why
        return Answer("put_off", [f"It was handed back or put off: it is due {when}."], [], facts)
    reason = moved.reason if moved is not None else "error" if retrying else "delayed"
    if reason in ("delayed", "merged") and _in_window(scene, due):
        return Answer(
            "collecting",
            [f"Events of its window become this one job: it is due when the window ends, {when}."],
            [],
            facts,
        )
    if reason == "unknown_task":
        return Answer(
            "unknown_task",
            [
                f"No worker that took it knows the task {record.task!r}; it is offered again {when}.",
                "After an hour it ends as unknown_task.",
            ],
            [f"deploy workers whose app has {record.task}", f"streamworker jobs cancel {record.job_id}"],
            facts,
        )
    if reason == "delayed":
        return Answer("delayed", [f"Its producer asked for a delay: it is due {when}."], [], facts)
    if reason == "snoozed":
        return Answer(
            "snoozed", [f"Its handler put it off: it is due {when}. No try was charged."], [], facts
        )
    says = [
        f"Attempt {record.attempt} failed with {code or 'an error'} ({error_class}); the next is due {when}."
    ]
    policy = None if moved is None else moved.facts.get("policy")
    if policy not in (None, "", "-"):
        says.append(f"The back-off comes from {policy}.")
        facts["policy"] = policy
    advice = [f"streamworker jobs show {record.job_id}", f"streamworker jobs hasten {record.job_id}"]
    return Answer("retry", says, advice, facts)


def _in_window(scene: Scene, due: int) -> bool:
    """Whether it waits for events that its task lets become one, and for nothing else."""
    merging = None if scene.declared is None else scene.declared.coalesce
    if merging is None:
        return False
    merged = any(move.reason == "merged" for move in scene.history.moves)
    return merged or due - (scene.record.number("at") or 0) == durations.to_ms(merging.window)


async def _deferred(scene: Scene) -> Answer:
    from streamworker.ops import overload

    record, found = scene.record, await overload.drain(scene.queue)
    depth, _ = found.lanes.get(record.lane, (0, None))
    ahead = await lane.ahead(scene, "b")
    facts = {
        "ahead": ahead.count,
        "backlog": found.depth,
        "rate": None if found.rate is None else str(found.rate),
    }
    says = [
        (
            f"It waits in the backlog; {ahead} of the {depth} there for lane {record.lane} before it. "
            f"Why it was put there: {record.text('bl')}."
        )
    ]
    if found.paused:
        pause = scene.pauses[f"lane:{BACKLOG}"]
        return Answer(
            "backlog_paused",
            [*says, f"The backlog is paused {said_by(pause)}."],
            [f"streamworker resume lane:{BACKLOG}"],
            facts,
        )
    if not found.on:
        why = "" if found.set is None else f" by {found.set.by}"
        return Answer("drain_off", [*says, f"The drain is off{why}."], ["streamworker drain --on"], facts)
    if (stop := lane.stopped(scene, says, facts)) is not None:
        return stop
    if found.rate is None:
        return Answer(
            "no_worker", [*says, "No worker has declared a drain."], ["streamworker workers"], facts
        )
    per_ms = found.rate.tokens / found.rate.period_ms
    says.append(
        f"The backlog is drained at {found.rate} while its lane has room: its turn comes in "
        f"{span((ahead.count + 1) / per_ms)} or later."
    )
    return Answer("deferred", says, ["streamworker drain", "streamworker lanes"], facts)


async def _behind_tenant(scene: Scene) -> Answer:
    record = scene.record
    tenant = record.text("tn") or ""
    ahead = await lane.ahead(scene, "t")
    facts = {"tenant": tenant, "ahead": ahead.count}
    says = [
        (
            f"Tenant {tenant} has as many jobs at the head of lane {record.lane} as one tenant may; "
            f"of that tenant's, {ahead.wait} before this one."
        )
    ]
    if (stop := lane.stopped(scene, says, facts) or lane.will_park(scene, says)) is not None:
        return stop
    says.append("Each that is claimed lets the next one in, so that no tenant stands in front of the others.")
    return Answer("turnstile", says, ["streamworker lanes"], facts)


async def _quarantined(scene: Scene) -> Answer:
    record = scene.record
    ahead = await lane.ahead(scene, "q")
    strikes = "once" if record.strikes == 1 else f"{record.strikes} times"
    says = [
        (
            f"A worker died {strikes} while it held the job, so it will run alone in a child process; "
            f"{ahead.wait} before it."
        )
    ]
    facts = {"strikes": record.strikes, "ahead": ahead.count}
    return (
        lane.stopped(scene, says, facts)
        or lane.will_park(scene, says)
        or Answer("quarantine", says, [], facts)
    )
