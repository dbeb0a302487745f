"""The pump: settles what ended and claims for the free slots, in one call, at most two of them in flight.

What ends while two calls are under way goes into the next one (group commit). After any failed call the
session is raised, so that a late execution of it finds nothing, and what Redis delivered to us without our
hearing of it is offered back (D5). An outcome is held until its settle is acknowledged: sending it twice
is harmless, losing it is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streamworker.core import lanes as lane_plan
from streamworker.core.errors import ConnectionLost, StreamworkerError
from streamworker.core.job import Claim
from streamworker.core.lanes import Free, Lane, Plan, Slots
from streamworker.settings import Settings
from streamworker.store import scripts
from streamworker.store.caller import backoff, passes
from streamworker.store.connection import Argument, Link, NoScript, ReplyError
from streamworker.store.keys import GROUP, STREAM_SUFFIX, Keys
from streamworker.worker.running import Running, Stop

log = logging.getLogger("streamworker.worker")

#: Calls under way at most. Serial calls gave half the throughput, more gave nothing.
FLIGHTS = 2
#: Times that a row may be refused by the script, alone in its call, until the claim is left to recovery.
REFUSALS = 3
#: Entries that one look at our own pending list asks for.
PENDING_PAGE = 500

Entry = tuple[str, str, str]  # lane, kind, entry id


@dataclass(slots=True)
class _Flight:
    """One exchange under way."""

    call: scripts.Call
    settled: list[Running]
    marked: list[Running]
    offers: list[Entry]
    plan: Plan | None
    sent_at: float
    resent: bool = False


@dataclass(slots=True)
class Counters:
    """What the pump counted since the worker started."""

    claims: int = 0
    settled: int = 0
    stale: int = 0
    dropped_rows: int = 0
    resyncs: int = 0
    replies: dict[str, int] = field(default_factory=dict)


class Pump:
    """Owns the connection, the session and every claim this worker holds."""

    def __init__(
        self,
        settings: Settings,
        lanes: Mapping[str, Lane],
        concurrency: int,
        worker: str,
        *,
        start: Callable[[Running], bool],
        facts: Mapping[str, str],
    ) -> None:
        self.settings = settings
        self.keys = Keys(settings.namespace)
        self.worker = worker
        self.concurrency = concurrency
        self.link = Link(settings.redis_url)
        #: The newest claim of each job that this worker holds, from its reply to its settle's acknowledgement.
        self.held: dict[str, Running] = {}
        self.counters = Counters()
        #: Called after a reply that left slots free and lanes empty: the reader may block.
        self.on_dry: Callable[[], None] = lambda: None
        self._lanes = lanes
        self._slots = Slots.of(lanes, concurrency)
        self._plan_state = lane_plan.State()
        self._start = start
        self._facts = facts
        self._loop = asyncio.get_running_loop()
        self._busy: dict[str, int] = dict.fromkeys(lanes, 0)
        self._outbox: list[Running] = []
        self._marks: list[Running] = []
        self._offers: list[Entry] = []
        self._unconfirmed: list[Running] = []
        self._flights: list[_Flight] = []
        self._session = 0
        self._scheduled = False
        self._ready = False
        self._claiming = True
        self._dry = False
        self._relist = False
        self._row_limit = scripts.BATCH
        self._failures = 0
        self._syncing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._accepting = False
        #: Lane whose quarantine is read next, alone (D22); None: normal running.
        self._quarantine: str | None = None
        self._alone: Running | None = None

    # --- what others tell the pump -----------------------------------------------------------------------

    def kick(self) -> None:
        """Look for something to send at the end of this loop turn."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def ended(self, running: Running) -> None:
        """An outcome is there. Sent at once when half a window is full, else at the end of the loop turn."""
        if running.stopping is Stop.LOST:
            self._let_go(running)
            self.kick()
            return
        self._outbox.append(running)
        full = len(self._outbox) * 2 >= self.concurrency and len(self._flights) < FLIGHTS
        if full and not self._accepting:
            self._turn()
        else:
            self.kick()

    def freed(self, running: Running) -> None:
        """A slot is free."""
        self._busy[running.claim.lane] -= 1
        if running is self._alone:
            self._alone = None
        self.kick()

    def mark(self, running: Running) -> None:
        """A job runs long enough for a start mark (D20)."""
        self._marks.append(running)
        self.kick()

    def offer(self, entries: list[Entry]) -> None:
        """Entries that the reader got: they are this consumer's, and claim decides what becomes of them."""
        self._offers.extend(entries)
        self._dry = False
        self.kick()

    def reader_failed(self) -> None:
        """What the reader got may never have reached us: look at our own pending entries (R18)."""
        self._relist = True
        self.kick()

    def heard(self, asked: dict[str, int], lost: set[str], cancelled: dict[str, str]) -> None:
        """A heartbeat's answer for the claims that it asked about (job id to fence).

        Claims that came too late to trust may start now, or are gone (D6). "Lost" holds for the fence that
        was asked about, never for a newer claim of the same job.
        """
        now = self._loop.time()
        for job_id in lost:
            running = self.held.get(job_id)
            if running is not None and running.claim.fence == asked[job_id] and running.outcome is None:
                running.tell(Stop.LOST, now)
        for job_id, code in cancelled.items():
            running = self.held.get(job_id)
            if running is not None and running.claim.fence == asked[job_id]:
                running.tell(Stop.EXPIRED if code == "expired" else Stop.CANCELLED, now)
        waiting, self._unconfirmed = self._unconfirmed, []
        for running in waiting:
            if running.claim.job_id in lost:
                self._let_go(running)
            elif running.claim.job_id in asked:
                self._begin(running)
            else:
                self._unconfirmed.append(running)

    def session_lost(self) -> None:
        """The worker's key expired: claims would be refused until it has a new session."""
        self._resync()

    def isolate(self, lane: str) -> None:
        """Run one job of this lane's quarantine, alone: claim nothing else until it has ended (D22)."""
        if self._quarantine is None and self._claiming:
            self._quarantine = lane
            self.kick()

    @property
    def isolating(self) -> bool:
        return self._quarantine is not None or self._alone is not None

    def stop_claiming(self) -> None:
        self._claiming = False
        self._quarantine = None

    # --- what others ask -----------------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """Slots in use."""
        return sum(self._busy.values())

    @property
    def ready(self) -> bool:
        """Connected, with a session."""
        return self._ready

    def eligible_lanes(self) -> list[str]:
        """Lanes with a free slot, for the blocking reader."""
        if not self._claiming or self.isolating or not self._ready:
            return []
        free = self._free()
        return [lane for lane in self._lanes if free.shared > 0 or free.reserved.get(lane, 0) > 0]

    @property
    def hungry(self) -> bool:
        """Nothing more to claim was found, and there is room: time for the blocking reader."""
        return self._dry and not self._flights and bool(self.eligible_lanes())

    def running(self) -> list[Running]:
        """The claims whose handler has not come to an outcome."""
        return [running for running in self.held.values() if running.outcome is None]

    async def drained(self) -> None:
        """Return when every outcome is acknowledged."""
        while self._outbox or self._flights or self._marks:
            self.kick()
            self._changed.clear()
            await self._changed.wait()

    async def idle(self) -> None:
        """Return when no handler runs."""
        while self.running():
            self._changed.clear()
            await self._changed.wait()

    # --- sending ---------------------------------------------------------------------------------------------

    def _free(self) -> Free:
        """Free slots that no call under way may fill."""
        free = self._slots.free(self._busy)
        for flight in self._flights:
            if flight.plan is not None:
                free = free.without(flight.plan)
        return free

    def _turn(self) -> None:
        self._scheduled = False
        self._changed.set()
        if not self._ready:
            return
        if self._relist and not self._flights:
            self._resync()
            return
        while len(self._flights) < FLIGHTS and self._launch():
            pass
        if self.hungry:
            self.on_dry()

    def _launch(self) -> bool:
        plan = self._plan()
        rows_left = self._row_limit
        settled = self._outbox[:rows_left]
        marked = [r for r in self._marks[: rows_left - len(settled)] if r.outcome is None]
        if plan is None and not settled and not marked and not self._offers:
            self._marks.clear()
            return False
        del self._outbox[: len(settled)]
        self._marks = self._marks[rows_left - len(settled) :]
        offers, self._offers = self._offers, []
        self._send(_Flight(self._call(settled, marked, offers, plan), settled, marked, offers, plan, 0.0))
        return True

    def _plan(self) -> Plan | None:
        """What to claim now; None: nothing."""
        if not self._claiming or self._alone is not None:
            return None
        if self._quarantine is not None:
            if self.busy or self._flights:
                return None
            return Plan.quarantine(self._quarantine)
        if self._dry and not self._offers:
            return None
        free = self._free()
        limit = free.total
        if limit <= 0:
            return None
        if not self._flights and limit > 1:
            limit = (limit + 1) // 2  # leave the other half to the next call
        return lane_plan.plan(self._slots, self._plan_state, free, limit)

    def _call(
        self, settled: list[Running], marked: list[Running], offers: list[Entry], plan: Plan | None
    ) -> scripts.Call:
        now = self._loop.time()
        rows: list[Argument] = []
        for running in settled:
            started = running.started
            ago = None if started is None else max(0, round((now - started) * 1000))
            assert running.outcome is not None  # noqa: S101 - only finished claims are in the outbox
            rows.extend(scripts.outcome_row(running.claim, running.outcome, ago))
        for running in marked:
            ago = round((now - running.started) * 1000) if running.started is not None else 0
            rows.extend(scripts.mark_row(running.claim, ago))
        return scripts.exchange(
            clock="",
            worker=self.worker,
            session=self._session,
            lease_ms=self.settings.lease_ms,
            retention_ms=scripts.RETENTION_MS,
            limit=0 if plan is None else plan.limit,
            shared=0 if plan is None else plan.shared,
            offers=scripts.offer_lines(offers),
            plan="" if plan is None else plan.lines(),
            rows=rows,
        )

    def _send(self, flight: _Flight) -> None:
        flight.sent_at = self._loop.time()
        self._flights.append(flight)
        try:
            reply = self.link.send_script(flight.call.script, self.keys.tag, *flight.call.argv)
        except ConnectionLost as error:
            self._failed(flight, error)
            return
        reply.add_done_callback(partial(self._answered, flight))

    # --- answers ---------------------------------------------------------------------------------------------

    def _answered(self, flight: _Flight, reply: asyncio.Future[Any]) -> None:
        if flight not in self._flights:  # given up on when the session was raised
            return
        error = reply.exception()
        if error is None:
            self._flights.remove(flight)
            self._accept(flight, *reply.result())
        elif isinstance(error, NoScript) and not flight.resent and self.link.connected:
            flight.resent = True
            call = flight.call
            again = self.link.send("EVAL", call.script.text, 1, self.keys.tag, *call.argv)
            again.add_done_callback(partial(self._answered, flight))
        else:
            self._failed(flight, error)

    def _accept(self, flight: _Flight, verdict: bytes, claims: list[bytes], replies: list[bytes]) -> None:
        self._failures = 0
        self._accepting = True
        if self._row_limit < scripts.BATCH:
            self._row_limit = min(scripts.BATCH, self._row_limit * 2)
        for running, reply in zip(flight.settled, replies, strict=False):
            self._let_go(running)
            self._count(running, reply)
        if verdict != b"OK":
            self._accepting = False
            self._resync()
            return
        late = self._loop.time() - flight.sent_at > self.settings.lease
        taken: dict[str, int] = {}
        for i in range(0, len(claims), 3):
            claim = Claim.parse(claims[i], claims[i + 1], claims[i + 2])
            taken[claim.lane] = taken.get(claim.lane, 0) + 1
            self._take(Running(claim), late)
        self.counters.claims += len(claims) // 3
        if flight.plan is not None:
            if flight.plan.is_quarantine:
                self._quarantine = None
                self._dry = False
            else:
                self._dry = len(claims) // 3 < flight.plan.limit
                self._plan_state = lane_plan.charge(self._plan_state, flight.plan, taken)
        self._accepting = False
        self._turn()

    def _count(self, running: Running, reply: bytes) -> None:
        word = reply.decode()
        self.counters.settled += 1
        if word in ("STALE", "GONE"):
            self.counters.stale += 1
            log.warning(
                "job %s of task %s: the outcome was not recorded (%s): the claim was lost to recovery or a cancel",
                running.claim.job_id,
                running.task_name,
                word,
            )

    def _take(self, running: Running, late: bool) -> None:
        older = self.held.get(running.claim.job_id)
        if older is not None:  # a newer claim of a job ends its older handler here (D6)
            older.tell(Stop.LOST, self._loop.time())
        self.held[running.claim.job_id] = running
        if running.claim.kind == "q":
            self._alone = running
        if late:
            self._unconfirmed.append(running)
        else:
            self._begin(running)

    def _let_go(self, running: Running) -> None:
        if self.held.get(running.claim.job_id) is running:
            del self.held[running.claim.job_id]
        if running is self._alone and not running.occupies:
            self._alone = None

    def _begin(self, running: Running) -> None:
        if self._start(running):
            self._busy[running.claim.lane] += 1
        elif running is self._alone:
            self._alone = None

    # --- failures --------------------------------------------------------------------------------------------

    def _failed(self, flight: _Flight, error: BaseException) -> None:
        """A call failed: was it executed? Unknown. Its rows are sent again, its claims are offered back."""
        self._give_up(flight)
        if isinstance(error, ReplyError) and not passes(error):
            self._refused(flight, error)
        elif not isinstance(error, ConnectionLost):
            log.warning("exchange failed: %s", error)
        self._resync()

    def _give_up(self, flight: _Flight) -> None:
        if flight in self._flights:
            self._flights.remove(flight)
        self._outbox[:0] = flight.settled
        self._marks[:0] = [running for running in flight.marked if running.outcome is None]

    def _refused(self, flight: _Flight, error: ReplyError) -> None:
        """The script refused the call: send fewer rows, to find the one it is about; keep the others going."""
        message = flight.call.script.locate(str(error))
        log.error("exchange with %d rows was refused: %s", len(flight.settled), message)
        self._row_limit = max(1, min(self._row_limit, len(flight.settled)) // 2)
        if len(flight.settled) != 1:
            return
        (running,) = flight.settled
        running.refusals += 1
        if running.refusals >= REFUSALS:
            self._outbox.remove(running)
            self._let_go(running)  # no heartbeat any more: the lease runs out and recovery decides
            self.counters.dropped_rows += 1
            log.error("job %s: its outcome cannot be recorded; left to recovery", running.claim.job_id)

    def _resync(self) -> None:
        """New connection, new session, and a look at what is ours (D5). One at a time, until it works."""
        self._ready = False
        for flight in list(self._flights):
            self._give_up(flight)
        if self._syncing is None or self._syncing.done():
            self._syncing = self._loop.create_task(self._sync())

    async def open(self) -> None:
        """First connection and session. Raises ConnectionLost or ServerUnsuitable."""
        await self._renew()
        self._ready = True

    async def _sync(self) -> None:
        self.counters.resyncs += 1
        while True:
            self._failures += 1
            if self._failures > 1:
                await asyncio.sleep(backoff(self._failures))
            try:
                await self._renew()
                break
            except StreamworkerError as error:
                log.warning("no session with Redis yet: %s", error)
        self._relist = False
        self._dry = False
        self._ready = True
        self._syncing = None
        self.kick()

    async def _renew(self) -> None:
        await self.link.connect()
        facts = [word for fact in self._facts.items() for word in fact]
        call = scripts.session(
            worker=self.worker, own=self._session, liveness_ms=self.settings.liveness_ms, rows=facts
        )
        self._session = int(await self.link.script(call.script, self.keys.tag, *call.argv))
        self._offers = await self._pending_not_held()

    async def _pending_not_held(self) -> list[Entry]:
        """Entries that were delivered to us and that we do not hold."""
        held = {running.place for running in self.held.values()}
        found: list[Entry] = []
        for lane in self._lanes:
            for kind in STREAM_SUFFIX:
                found.extend((lane, kind, entry) for entry in await self._pending(lane, kind))
        return [place for place in found if place not in held]

    async def _pending(self, lane: str, kind: str) -> list[str]:
        found: list[str] = []
        start = "-"
        while True:
            try:
                page = await self.link.call(
                    "XPENDING", self.keys.stream(lane, kind), GROUP, start, "+", PENDING_PAGE, self.worker
                )
            except ReplyError as error:
                if "NOGROUP" in str(error):  # nothing was ever delivered from it (R9)
                    return found
                raise
            found.extend(row[0].decode() for row in page)
            if len(page) < PENDING_PAGE:
                return found
            start = f"({found[-1]}"

    async def hand_back(self) -> None:
        """At the end: what was delivered and does not run goes back to ready, uncharged (R18)."""
        if self._syncing is not None:
            await self._syncing
        self._offers = await self._pending_not_held()
        while self._offers or self._flights:
            self.kick()
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        if self._syncing is not None:
            self._syncing.cancel()
        self._ready = False
        await self.link.close()
