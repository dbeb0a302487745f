"""A worker has the job."""

from __future__ import annotations

from streamworker.core.states import Status
from streamworker.ops.explain.answer import Answer
from streamworker.ops.explain.scene import Scene, span
from streamworker.ops.history import iso

#: Why it is told to end, by the record's word.
_TOLD = {
    "cancelled": "It was cancelled",
    "expired": "Its deadline came",
    "superseded": "Another job took its place",
}


def answer(scene: Scene) -> Answer:
    """Who, since when, and whether he is still there."""
    record = scene.record
    worker = record.worker or "an unknown worker"
    facts = {
        "worker": record.worker,
        "attempt": record.attempt,
        "started_at": iso(record.started_at),
        "lease_until": iso(record.lease_until),
    }
    if record.lease_until <= scene.now:
        return Answer(
            "worker_lost",
            [
                f"Worker {worker} has not renewed its lease since it ended {scene.ago(record.lease_until)}.",
                "A living worker's next sweep takes the job over."
                if scene.workers
                else "No worker is alive to take it over.",
            ],
            ["streamworker workers"] if scene.workers else ["streamworker run MODULE:APP"],
            facts,
        )
    if told := record.text("cx"):
        return Answer(
            "cancelling",
            [
                (
                    f"{_TOLD.get(told, _TOLD['cancelled'])} while worker {worker} runs it; the handler is "
                    "told with the worker's next heartbeat. If it succeeds first, that counts."
                )
            ],
            [],
            facts,
        )
    if record.status is Status.CLAIMED:
        claimed = scene.last_move.at_ms if scene.last_move is not None else None
        return Answer(
            "claimed",
            [f"Worker {worker} took it {scene.ago(claimed)}; its handler is not known to have begun."],
            [],
            facts,
        )
    running = None if record.started_at is None else scene.now - record.started_at
    says = [f"It runs on worker {worker}, attempt {record.attempt}" + _since(running)]
    if running is not None and scene.declared is not None and scene.declared.timeout:
        left = scene.declared.timeout * 1000 - running
        says.append(f"Its time limit ends it in {span(left)}." if left > 0 else "Its time limit is over.")
    return Answer("running", says, [], facts)


def _since(running: int | None) -> str:
    return "." if running is None else f", for {span(running)}."
