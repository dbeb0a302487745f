"""The queue's verbs for producers without an event loop, safe in many threads."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from streamworker.core.errors import (
    ConnectionLost,
    EnqueueRejected,
    JobNotFound,
    OutcomeUnknown,
    ResultTimeout,
    StreamworkerError,
)
from streamworker.core.job import Record
from streamworker.core.lane import Pressure
from streamworker.core.router import Router
from streamworker.settings import Settings
from streamworker.store import manifest, scripts, watching
from streamworker.store.caller import Doubt, backoff
from streamworker.store.connection import ReplyError
from streamworker.store.keys import Keys
from streamworker.store.manifest import Declaration
from streamworker.store.patience import Patience
from streamworker.store.placing import (
    RESTORING,
    Marker,
    Placed,
    answered,
    chunked,
    enqueue_call,
    refusal,
    restoring,
    together,
)
from streamworker.store.pressures import Pressures
from streamworker.store.scripts import NewJob
from streamworker.store.sync_links import SyncCaller
from streamworker.store.watching import Ended


class SyncQueue:
    """One namespace. Connects when first used, and again when need be, also after a fork."""

    def __init__(self, settings: Settings, *, patience: float = 10.0) -> None:
        self.settings = settings
        self.keys = Keys(settings.namespace)
        self.caller = SyncCaller(settings.redis_url, self.keys.tag, patience=patience)
        self._manifest = manifest.Cache()
        self._pressures = Pressures()
        self._marker = Marker()

    def declared(self, task: str) -> Declaration | None:
        """What the manifest says of a task, as far as this queue has read it; see `know`."""
        return self._manifest.get(task)

    @property
    def router(self) -> Router:
        """The rules of the manifest, as far as this queue has read them; see `know`."""
        return self._manifest.router

    @property
    def pressure(self) -> Mapping[str, Pressure]:
        """What was heard last of the pressure in the lanes; see `feel`."""
        return self._pressures.levels

    def feel(self, router: Router) -> None:
        """Read the pressure, if this router wants to know it and it was not read just now.

        When it cannot be read, what was heard before is used on.
        """
        if fields := self._pressures.wanted(router):
            with suppress(ConnectionLost, ReplyError):
                self._pressures.note(router, self.caller.command("HMGET", self.keys.policies, *fields))

    def unknown(self, tasks: Collection[str]) -> list[str]:
        """The tasks whose declaration `know` has to read first."""
        return self._manifest.stale(tasks)

    def know(self, tasks: Collection[str]) -> None:
        """Read what these tasks declare. Raises ConnectionLost.

        An outage is no reason to forget: what was read before is used on.
        """
        try:
            values = self.caller.command("HMGET", self.keys.meta, *manifest.fields(tasks))
        except ReplyError as error:
            self._manifest.refused(tasks, error)
        except ConnectionLost:
            if not self._manifest.has(tasks):
                raise
        else:
            self._manifest.note(tasks, values)

    def place(self, jobs: Sequence[NewJob], *, wait: float = 0.0) -> list[Placed]:
        """Place a list; what is refused is sent again for up to `wait` seconds. Errors as in `_place`."""
        if not wait:
            return self._place(jobs)
        patience = Patience(jobs, wait)
        while True:
            try:
                pause = patience.take(self._place(patience.jobs))
            except EnqueueRejected as refused:
                pause = patience.refuse(refused)
            if pause is None:
                return patience.placed
            time.sleep(pause)

    def _place(self, jobs: Sequence[NewJob]) -> list[Placed]:
        """In one or a few calls; after one that fails no other is sent. Errors as in `together`."""
        found: list[tuple[Sequence[NewJob], list[Placed] | Exception]] = []
        failed: Exception | None = None
        for chunk in chunked(jobs, lambda job: job) if jobs else []:
            if failed is None:
                try:
                    replies = self._until_restored(chunk)
                except StreamworkerError as error:
                    failed = refusal(error)
                    found.append((chunk, failed))
                else:
                    placed = [answered(job, reply) for job, reply in zip(chunk, replies, strict=True)]
                    found.append((chunk, placed))
            elif isinstance(failed, EnqueueRejected):
                found.append((chunk, failed))
        return together(found)

    def _until_restored(self, chunk: Sequence[NewJob]) -> list[bytes]:
        """The replies, once Redis has its data again.

        When that takes too long, raises EnqueueRejected, or OutcomeUnknown if a reply was lost before.
        """
        until = time.monotonic() + self.caller.patience
        attempt, doubt, job_ids = 0, Doubt(), [job.job_id for job in chunk]
        while True:
            call = enqueue_call(chunk, self._marker.known)
            replies = self.caller.run_once_known(call, job_ids, doubt)
            if replies != RESTORING:
                return self._marker.learn(replies)
            attempt += 1
            pause = backoff(attempt)
            if time.monotonic() + pause > until:
                raise OutcomeUnknown(job_ids) if doubt.lost else restoring()
            time.sleep(pause)

    def record(self, job_id: str, *, until: float | None = None) -> Record:
        """The job's record; `until`: monotonic, when patience ends at the latest. Raises JobNotFound."""
        raw = self.caller.command("GET", self.keys.job(job_id), until=until)
        if raw is None:
            raise JobNotFound(job_id)
        return Record.parse(job_id, raw)

    def cancel(self, job_id: str, *, actor: str) -> bool:
        """Cancel a job: True unless it is over already. Raises JobNotFound."""
        call = scripts.cancel(clock="", actor=actor, retention_ms=scripts.RETENTION_MS, rows=(job_id, "-"))
        (reply,) = self.caller.run(call)
        word = reply.split(b" ")[0]
        if word == b"GONE":
            raise JobNotFound(job_id)
        return bool(word != b"ALREADY")

    def wait(self, job_id: str, timeout: float | None) -> Ended:
        """The outcome, when the job is over.

        Raises JobNotFound, or after `timeout` seconds ResultTimeout, or ConnectionLost if Redis is away.
        Looks again each time the blocking read ends, so that a wake-up that was lost costs one look more.
        """
        until = None if timeout is None else time.monotonic() + timeout
        register, failures = 1, 0
        while True:
            call = scripts.watch(clock="", job_id=job_id, wait=register)
            found = watching.parse(self.caller.run(call, until=until))
            if isinstance(found, bool):
                raise JobNotFound(job_id)
            if found is not None:
                return found
            register = 0
            left = watching.BLOCK if until is None else min(watching.BLOCK, until - time.monotonic())
            if left <= 0:
                raise ResultTimeout(job_id, timeout or 0.0, self.record(job_id, until=until).status)
            try:
                # Redis takes 0 for "for ever".
                self.caller.block("BLPOP", self.keys.done(job_id), f"{max(left, 0.001):.3f}")
                failures = 0
            except (ConnectionLost, ReplyError):
                failures += 1
                time.sleep(min(backoff(failures), left))

    def close(self) -> None:
        """Close this process's connections."""
        self.caller.close()
