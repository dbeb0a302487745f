"""Nobody holds the job: where it waits, for what, behind whom, and until when."""

from __future__ import annotations

from streamworker.core.lane import BACKLOG
from streamworker.ops.explain import lane, parked
from streamworker.ops.explain.answer import Answer
from streamworker.ops.explain.scene import Scene, said_by, span
from streamworker.ops.history import iso


async def answer(scene: Scene, sample: float) -> Answer:
    """Why it waits. The first that holds: what ends it, its gate, its time, its place."""
    record = scene.record
    if record.text("bu") is not None:
        return _burial(scene)
    if record.gate is not None:
        return await parked.answer(scene, record.gate)
    if record.entry is None:
        return _scheduled(scene)
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


def _scheduled(scene: Scene) -> Answer:
    record = scene.record
    due = record.number("du")
    retried = scene.move_with("due")
    facts = {"due_at": iso(due), "attempt": record.attempt}
    error_class, _, code = (record.text("ec") or "").partition(" ")
    if due is None or due <= scene.now:
        late = "" if due is None else f" since {span(scene.now - due)}"
        says = [f"It is due{late}, and no worker has brought it back into its lane."]
        if scene.workers:
            return Answer(
                "due", [*says, "A keeper does so ten times a second."], ["streamworker doctor"], facts
            )
        return Answer("no_worker", [*says, "No worker is alive."], ["streamworker run MODULE:APP"], facts)
    reason = retried.reason if retried is not None else "delayed"
    when = scene.until(due)
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
    policy = None if retried is None else retried.facts.get("policy")
    if policy:
        says.append(f"The back-off comes from {policy}.")
        facts["policy"] = policy
    return Answer("retry", says, [f"streamworker jobs show {record.job_id}"], facts)


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
            f"It waits in the backlog, {ahead} of {depth} meant for lane {record.lane}. "
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
    return Answer(
        "turnstile",
        [
            (
                f"Tenant {tenant} has as many jobs at the head of lane {record.lane} as one tenant may; "
                f"{ahead} of that tenant's wait before this one."
            ),
            "Each that is claimed lets the next one in, so that no tenant stands in front of the others.",
        ],
        ["streamworker lanes"],
        {"tenant": tenant, "ahead": ahead.count},
    )


async def _quarantined(scene: Scene) -> Answer:
    record = scene.record
    ahead = await lane.ahead(scene, "q")
    strikes = "once" if record.strikes == 1 else f"{record.strikes} times"
    says = [
        (
            f"A worker died {strikes} while it held the job, so it runs alone in a child process; {ahead} "
            "wait before it."
        )
    ]
    if not scene.serving(record.lane):
        return Answer(
            "no_worker",
            [*says, f"No living worker serves lane {record.lane}."],
            ["streamworker run MODULE:APP"],
            {"strikes": record.strikes},
        )
    return Answer("quarantine", says, [], {"strikes": record.strikes, "ahead": ahead.count})
