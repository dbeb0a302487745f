"""The connections of an app under test: who waits for a result that nobody works on is told so."""

from __future__ import annotations

import asyncio
import time

from streamworker.core.errors import JobNotFound
from streamworker.settings import Settings
from streamworker.store.connection import Opens
from streamworker.store.queue import Queue, QueueSource
from streamworker.store.watching import Ended

#: Real seconds without a drain after which a result is not waited for any longer.
NOBODY_DRAINS = 1.0
#: Real seconds between two looks at that.
LOOK_EVERY = 0.05


class Drains:
    """Whether jobs run now. Told by the worker of the test; asked from any thread."""

    def __init__(self) -> None:
        self.under_way = False
        self._ended = 0.0

    def end(self) -> None:
        """A drain is over."""
        self.under_way = False
        self._ended = time.monotonic()

    def missed(self, since: float) -> bool:
        """Whether there was none for long, of the time after `since` (monotonic seconds)."""
        return not self.under_way and time.monotonic() - max(since, self._ended) >= NOBODY_DRAINS


class HandQueue(Queue):
    """A queue whose jobs run when the test says so."""

    def __init__(self, settings: Settings, drains: Drains, *, opens: Opens) -> None:
        super().__init__(settings, opens=opens)
        self._drains = drains
        #: Since when jobs are waited for that are not there, by id; in monotonic seconds.
        self._missing: dict[str, float] = {}

    async def wait(self, job_id: str, timeout: float | None) -> Ended:
        """As usual; without a time limit AssertionError when nothing drains."""
        if timeout is not None:
            return await super().wait(job_id, timeout)
        since = self._missing.pop(job_id, time.monotonic())
        waiting = asyncio.ensure_future(super().wait(job_id, None))
        try:
            while not (await asyncio.wait({waiting}, timeout=LOOK_EVERY))[0]:
                if self._drains.missed(since):
                    status = (await self.record(job_id)).status
                    raise AssertionError(_nobody(f"job {job_id} is {status}"))
            return waiting.result()
        except JobNotFound:  # asked again, if it is in an outbox
            if self._drains.missed(since):
                raise AssertionError(_nobody(f"job {job_id} is not there, or in the outbox")) from None
            self._missing[job_id] = since
            raise
        finally:
            waiting.cancel()


class HandSource(QueueSource):
    """Makes such queues."""

    def __init__(self, settings: Settings, drains: Drains, *, opens: Opens) -> None:
        super().__init__(settings, opens=opens)
        self._drains = drains

    def _make(self) -> Queue:
        return HandQueue(self.settings, self._drains, opens=self.opens)


def _nobody(what: str) -> str:
    return (
        f"{what}, and nothing has run for {NOBODY_DRAINS:g} s: in a test jobs run while it drains. "
        "`await t.drain()` before `await job.result()`, or in a task beside it; a job that is due later "
        'needs `t.clock.advance("1h")` first, or `t.drain(until_idle=True)`'
    )
