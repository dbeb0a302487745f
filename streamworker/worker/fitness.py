"""Whether a claimed job can run here: what it asks for, what it has passed, and how old it is."""

from __future__ import annotations

import logging
from typing import Any

from streamworker.app import App
from streamworker.core import durations
from streamworker.core.classify import error_text
from streamworker.core.errors import InvalidArgument, UnknownTask
from streamworker.core.gates import regate
from streamworker.core.job import Claim, Envelope
from streamworker.core.outcome import Fail, Outcome, Release
from streamworker.core.signature import BadArguments
from streamworker.core.states import ErrorClass, Reason
from streamworker.core.text import truncate_text
from streamworker.task import Task
from streamworker.worker.outcomes import unknown_task_outcome
from streamworker.worker.running import Running

log = logging.getLogger("streamworker.worker")

#: Unknown tasks that are named in the log; producers may make up any number.
UNKNOWN_NAMED = 100
#: Characters of what is said of one: an app may have hundreds of tasks.
UNKNOWN_SAID = 300


class Fitness:
    """Judges claims by the tasks and lanes of an app."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._max_ages = {
            name: durations.to_ms(lane.max_age)
            for name, lane in app.lanes.items()
            if lane.max_age is not None
        }
        self._unknown: set[str] = set()

    def judge(self, running: Running) -> Task[..., Any] | Outcome:
        """The task that runs it, or what it comes to without running; notes what was read of it."""
        claim = running.claim
        try:
            envelope = Envelope.decode(claim.envelope)
        except ValueError as error:
            text = truncate_text(f"the envelope cannot be read: {error}")
            return Fail(ErrorClass.PERSISTENT, "bad_envelope", text)
        running.task_name, running.envelope = envelope.task, envelope
        task = self._app.tasks.get(envelope.task)
        if task is None:
            self._say_unknown(envelope.task)
            return unknown_task_outcome(envelope.task, claim.unknown_age_ms)
        try:
            task.signature.check(envelope.args)
        except BadArguments as error:
            return Fail(ErrorClass.PERSISTENT, "bad_arguments", truncate_text(f"BadArguments: {error}"))
        if task.gates is not None or claim.gates:
            try:
                gates = self._other_gates(claim, envelope, task)
            except InvalidArgument as error:
                return Fail(ErrorClass.PERSISTENT, "bad_arguments", error_text(error))
            if gates is not None:
                return Release(Reason.REGATED, gates=gates)
        if self._max_ages and self._too_old(claim, envelope):
            text = f"it waited longer than the lane {claim.lane} allows for its first start"
            return Fail(ErrorClass.PERSISTENT, "expired", text, Reason.EXPIRED)
        return task

    def _say_unknown(self, name: str) -> None:
        """Once for each name: its jobs come back every few seconds."""
        if name in self._unknown or len(self._unknown) >= UNKNOWN_NAMED:
            return
        self._unknown.add(name)
        said = str(UnknownTask(name, self._app.tasks))[:UNKNOWN_SAID]
        log.warning("jobs are handed back for an hour, for workers that know their task: %s", said)

    def _other_gates(self, claim: Claim, envelope: Envelope, task: Task[..., Any]) -> str | None:
        """What the job has to pass by this worker's newer declaration; None if it has passed it (D17)."""
        return regate(
            task.gates,
            claim.gates,
            envelope.args,
            tenant=envelope.tenant,
            lane=claim.lane,
            number=self._app.published.get(task.name, 0),
        )

    def _too_old(self, claim: Claim, envelope: Envelope) -> bool:
        """Whether a job waited for its first start longer than its lane allows; a delay is no waiting."""
        limit = self._max_ages.get(claim.lane)
        return limit is not None and claim.starts == 1 and claim.age_ms - envelope.delay_ms > limit
