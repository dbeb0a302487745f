"""Renews leases from a thread of its own, so that a handler that blocks the loop loses no claim (R22)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from streamworker.core.errors import StreamworkerError
from streamworker.settings import Settings
from streamworker.store import scripts
from streamworker.store.caller import backoff
from streamworker.store.connection import SyncLink
from streamworker.store.keys import Keys
from streamworker.worker.pump import Pump

log = logging.getLogger("streamworker.worker")

#: Claims that one call renews: 500 took up to 9 ms of Redis's time, 100 take 2, as measured on the three
#: servers; meanwhile nobody else is answered (R32).
CHUNK = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """What Redis says of the claims in one call."""

    #: The worker's key is there; without it claims are refused (D5).
    alive: bool
    #: Jobs of claims that are not ours any more.
    lost: set[str]
    #: Job id to the code that cancels it.
    cancelled: dict[str, str]

    @classmethod
    def parse(cls, reply: Any) -> Answer:
        """From the script's reply."""
        verdict, lost, flags = reply
        words = [word.decode() for word in flags]
        return cls(
            verdict == b"OK",
            {word.decode() for word in lost},
            dict(zip(words[::2], words[1::2], strict=True)),
        )


def calls(settings: Settings, pump: Pump) -> Iterator[tuple[dict[str, int], scripts.Call]]:
    """The calls of one beat, each with the claims (job id to fence) that it renews; one call at least."""
    held = [(running.claim.job_id, running.claim.fence) for running in list(pump.holdings.by_job.values())]
    for start in range(0, max(1, len(held)), CHUNK):
        chunk = held[start : start + CHUNK]
        yield (
            dict(chunk),
            scripts.heartbeat(
                clock="",
                worker=pump.session.worker,
                lease_ms=settings.lease_ms,
                liveness_ms=settings.liveness_ms,
                rows=[word for claim in chunk for word in claim],
            ),
        )


class Heartbeat:
    """Every third of a lease: the claims we hold live on, the lost and the cancelled are told.

    Catches everything: a heartbeat that dies must not take a job with it, nor the worker (R21). While its own
    connection cannot be had, as when the server has all the clients that it takes, it goes by the pump's.
    """

    def __init__(self, settings: Settings, pump: Pump, *, on_session_lost: Callable[[], None]) -> None:
        self._settings = settings
        self._pump = pump
        self._tag = Keys(settings.namespace).tag
        self._interval = settings.lease / 3
        self._link = SyncLink(settings.redis_url, timeout=max(1.0, min(5.0, settings.lease / 3)))
        self._loop = asyncio.get_running_loop()
        self._on_session_lost = on_session_lost
        self._heard = time.monotonic()
        self._by_pump: asyncio.Task[None] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streamworker-heartbeat", daemon=True)

    @property
    def link(self) -> SyncLink:
        """Its connection."""
        return self._link

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a call that is under way ends by its timeout."""
        self._stop.set()

    def _run(self) -> None:
        failures = 0
        pause = self._interval
        self._heard = time.monotonic()
        while not self._stop.wait(pause):
            try:
                self._beat()
                failures, pause = 0, self._interval
            except StreamworkerError as error:
                self._link.close()  # a server that is no primary any more answers too (R42)
                failures += 1
                pause = min(self._interval, backoff(failures))
                if failures == 1:
                    log.warning("heartbeat failed, trying again: %s", error)
                self._in_loop(self._go_by_pump)
                if time.monotonic() - self._heard > self._settings.lease:
                    self._in_loop(self._pump.standing.out_of_touch)
            except Exception:
                failures += 1
                pause = min(self._interval, backoff(failures))
                log.exception("heartbeat failed")
        self._link.close()

    def _beat(self) -> None:
        for asked, call in calls(self._settings, self._pump):
            self._tell(asked, Answer.parse(self._link.script(call.script, self._tag, *call.argv)))

    def _go_by_pump(self) -> None:
        if self._by_pump is None or self._by_pump.done():
            self._by_pump = self._loop.create_task(self._beat_by_pump())

    async def _beat_by_pump(self) -> None:
        link = self._pump.session.link
        with contextlib.suppress(StreamworkerError):  # the thread tries again, and says so
            for asked, call in calls(self._settings, self._pump):
                self._tell(asked, Answer.parse(await link.script(call.script, self._tag, *call.argv)))

    def _tell(self, asked: dict[str, int], answer: Answer) -> None:
        self._heard = time.monotonic()
        if self._stop.is_set():  # we have said good-bye, and that our key is gone is no news
            return
        self._in_loop(self._pump.standing.heard, asked, answer.lost, answer.cancelled)
        if not answer.alive:
            self._in_loop(self._on_session_lost)

    def _in_loop(self, tell: Callable[..., None], *what: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(tell, *what)
        except RuntimeError:  # the loop is closed: the worker is gone
            self._stop.set()
