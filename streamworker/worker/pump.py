"""The pump: settles what ended and claims for the free slots, in one call, at most two of them in flight.

What ends while two calls are under way goes into the next one (group commit). After any failed call the
session is raised, so that a late execution of it finds nothing, and what Redis delivered to us without our
hearing of it is offered back (D5). An outcome is held until its settle is acknowledged: sending it twice
is harmless, losing it is not.

What it knows lies in pieces beside it: `holdings` the claims it holds, `unsent` what is to be told, `planner`
what to claim, `struck` the quarantine, `standing` what the heartbeat hears, `renewal` the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from streamworker.core.job import Claim
from streamworker.core.lanes import Lane, Plan
from streamworker.core.outcome import NOT_RECORDED, Release
from streamworker.core.states import Reason
from streamworker.settings import Settings
from streamworker.store import scripts
from streamworker.store.caller import passes
from streamworker.store.connection import NoScript, ReplyError
from streamworker.worker.calls import Calls
from streamworker.worker.flight import Flight, Teller, report_stale, rows_of, tell
from streamworker.worker.holdings import Holdings
from streamworker.worker.planner import Planner
from streamworker.worker.renewal import Renewal
from streamworker.worker.running import Running, Stop
from streamworker.worker.session import Entry, Session
from streamworker.worker.standing import Standing
from streamworker.worker.struck import Struck
from streamworker.worker.unsent import Unsent

log = logging.getLogger("streamworker.worker")

#: Calls under way at most. Serial calls gave half the throughput, more gave nothing.
FLIGHTS = 2


class Pump:
    """Owns the session and moves every claim of this worker through it."""

    def __init__(
        self,
        settings: Settings,
        lanes: Mapping[str, Lane],
        concurrency: int,
        session: Session,
        *,
        start: Callable[[Running], bool],
        breakers: Mapping[str, str] | None = None,
    ) -> None:
        """`breakers`: the gate of each dependency that has a breaker."""
        self.session = session
        self._tag = session.keys.tag
        self.holdings = Holdings(lanes)
        self.renewal = Renewal(session, self._renewed)
        self.standing = Standing(self.holdings, self._begin)
        self.struck = Struck(self.holdings)
        #: Told of each call of a dependency.
        self.calls = Calls(breakers or {}, self.kick)
        #: Told of cached values that a job has made old, once its outcome is recorded.
        self.on_stale: Callable[[set[str]], None] = lambda _: None
        #: Called when there is room and nothing more to claim: the reader may block.
        self.on_dry: Callable[[], None] = lambda: None
        #: Told of each answered exchange.
        self.tellers: list[Teller] = []
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._planner = Planner(lanes, concurrency, self.holdings, clock=self._loop.time)
        self._start = start
        self._unsent = Unsent(self.holdings)
        self._offers: list[Entry] = []
        self._flights: list[Flight] = []
        self._scheduled = False
        self._accepting = False
        self._claiming = True
        self._relist = False
        self._changed = asyncio.Event()

    # --- what others tell the pump

    def kick(self) -> None:
        """Look for something to send at the end of this loop turn."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._kicked)

    def _kicked(self) -> None:
        if self._scheduled:  # else a turn was taken meanwhile
            self._turn()

    def ended(self, running: Running) -> None:
        """An outcome is there. Sent at once when half a window is full, else at the end of the loop turn."""
        self._changed.set()
        if running.stopping is Stop.LOST:
            self.holdings.let_go(running)
            if running.stale:  # what it wrote may be there, whoever has the job now
                self.on_stale(running.stale)
            self.kick()
            return
        ended = self._unsent.ended
        ended.append(running)
        full = len(ended) * 2 >= self._planner.concurrency and len(self._flights) < FLIGHTS
        if full and not self._accepting:
            self._turn()
        else:
            self.kick()

    def freed(self, running: Running) -> None:
        """A slot is free."""
        self._changed.set()
        self.holdings.vacate(running)
        if (
            running.outcome is not None
        ):  # else its outcome follows at once, and is sent with a claim for the slot
            self.kick()

    def mark(self, running: Running) -> None:
        """A job runs long enough for a start mark (D20)."""
        self._unsent.begun.append(running)
        self.kick()

    def offer(self, entries: list[Entry]) -> None:
        """Entries that the reader got: they are this consumer's, and claim decides what becomes of them.

        A reader that hears late may name what we found pending, and run by now.
        """
        self._offers.extend(self.holdings.unknown(entries))
        self._planner.woken([lane for lane, _, _ in entries])
        self.kick()

    def reader_failed(self) -> None:
        """What the reader got may never have reached us: look at our own pending entries (R18)."""
        self._relist = True
        self._planner.woken()  # a claim also makes a missing group again (R9)
        self.kick()

    def take_up(self, lanes: Mapping[str, Lane]) -> None:
        """Share the slots by other figures of the same lanes."""
        self._planner.take_up(lanes)
        self.kick()

    def session_lost(self) -> None:
        """Claims would be refused, or some may be lost: give up what is under way, and get a new session."""
        for flight in list(self._flights):
            self._give_up(flight)
        self.renewal.begin()

    def isolate(self, lane: str) -> None:
        """Run one job of this lane's quarantine, alone: claim nothing else until it has ended (D22).

        For apps that no child process can have.
        """
        if not self.struck.isolating and self._claiming:
            self.struck.want(lane, apart=False)
            self.kick()

    async def run_apart(self, lane: str) -> bool:
        """Claim one job of this lane's quarantine for the child, beside all else; return when it has ended.

        False: there was none, or it could not be claimed.
        """
        self.struck.want(lane, apart=True)
        self.kick()
        return await self.struck.over()

    def stop_claiming(self) -> None:
        self._claiming = False
        self.struck.forget()

    # --- what others ask

    @property
    def ready(self) -> bool:
        """Whether it has a session with Redis."""
        return self.renewal.ready

    def eligible_lanes(self) -> list[str]:
        """Lanes with a free slot, for the blocking reader."""
        if not self._claiming or self.struck.isolating or not self.renewal.ready:
            return []
        return self._planner.eligible()

    @property
    def hungry(self) -> bool:
        """There is room, and no lane with room has work: time for the blocking read."""
        if self._offers or self._flights:
            return False
        eligible = self.eligible_lanes()
        return bool(eligible) and self._planner.empty(eligible)

    async def drained(self) -> None:
        """Return when every outcome is acknowledged."""
        while self._unsent or self._flights:
            await self._change()

    async def idle(self) -> None:
        """Return when no handler runs, and no call is under way that may bring a claim."""
        while self.holdings.running() or any(flight.limit for flight in self._flights):
            await self._change()

    async def hand_back(self) -> None:
        """At the end: what was delivered and does not run goes back to ready, uncharged (R18)."""
        self._offers = self.holdings.unknown_pending(await self.session.pending())
        while self._offers or self._flights:
            await self._change()

    async def _change(self) -> None:
        """Return when an outcome came, a slot was freed, a call was answered or a session begun."""
        self.kick()
        self._changed.clear()
        await self._changed.wait()

    # --- sending

    def _turn(self) -> None:
        self._scheduled = False
        if not self.renewal.ready:
            return
        if self._relist and not self._flights:
            self.session_lost()
            return
        while len(self._flights) < FLIGHTS and self._launch():
            pass
        if self.hungry:
            self.on_dry()

    def _launch(self) -> bool:
        """Send what there is to send; False when there is nothing, or no connection."""
        asked = sum([flight.limit for flight in self._flights])
        told = self._unsent or self._offers or self.struck.lane or self.calls.due
        if not told and self._planner.free(asked) <= 0:
            return False
        settled, marked = self._unsent.take()
        plan, quarantine = self._what_to_claim(asked)
        if not (settled or marked or self._offers or plan or quarantine or self.calls.due):
            return False
        offers, self._offers = self._offers, []
        limit = plan.limit if plan else 0
        lines = [scripts.quarantine_line(quarantine)] if quarantine else []
        call = scripts.exchange(
            clock="",
            worker=self.session.worker,
            session=self.session.number,
            lease_ms=self._settings.lease_ms,
            retention_ms=scripts.RETENTION_MS,
            limit=limit,
            shared=plan.shared if plan else 0,
            offers=scripts.offer_lines(offers),
            plan="\n".join([*lines, scripts.plan_lines(plan)]),
            calls=self.calls.take(),
            rows=rows_of(settled, marked, self._loop.time()),
        )
        flight = Flight(call, settled, marked, plan, quarantine, self.struck.apart, limit, self._loop.time())
        self._flights.append(flight)
        return self._send(flight, "EVALSHA", call.script.sha)

    def _what_to_claim(self, asked: int) -> tuple[Plan | None, str | None]:
        """A plan and the lane whose quarantine is read, as far as there is either."""
        if not self._claiming or self.holdings.alone is not None:
            return None, None
        quarantine = self.struck.due(self._flights)
        if self.struck.isolating:
            return None, quarantine
        under_way = [flight.plan for flight in self._flights]
        return self._planner.next(under_way, asked, idle_too=bool(self._offers)), quarantine

    def _send(self, flight: Flight, command: str, script: str) -> bool:
        """Whether it could be sent; if not, a new session is on its way."""
        try:
            self.session.link.post(
                partial(self._answered, flight), command, script, 1, self._tag, *flight.call.argv
            )
        except Exception as error:  # no connection, or no memory for what is to be sent
            self._failed(flight, error)
            return False
        return True

    # --- answers

    def _answered(self, flight: Flight, reply: Any) -> None:
        if flight not in self._flights:  # given up on when the session was raised
            return
        if not isinstance(reply, Exception):
            self._flights.remove(flight)
            self._accept(flight, *reply)
        elif isinstance(reply, NoScript):
            self._send(flight, "EVAL", flight.call.script.text)
        else:
            self._failed(flight, reply)

    def _accept(self, flight: Flight, verdict: bytes, claims: list[bytes], replies: list[bytes]) -> None:
        flight.took = self._loop.time() - flight.sent_at
        self._changed.set()
        self.renewal.works()
        self._unsent.accepted()
        for running, reply in zip(flight.settled, replies, strict=False):
            self.holdings.let_go(running)
            if reply in NOT_RECORDED:
                report_stale(running, reply.decode())
            if running.stale:
                self.on_stale(running.stale)
        if flight.quarantine:
            self.struck.forget()
        word, *said = verdict.decode().split(" ")
        paused = [lane for lane in said if "=" not in lane]
        if word != "OK" and (flight.limit or flight.quarantine):
            tell(self.tellers, flight, replies, [], {}, [])
            self.session_lost()
            return
        if paused:
            self._loop.call_later(self._planner.pause(paused), self._ask_paused)
        begun: list[Running] = []
        taken = {row.lane: 0 for row in flight.plan.rows if row.reserved + row.quota} if flight.plan else {}
        self._accepting = True  # what ends at once is collected, and sent when all are begun
        try:
            self._take(flight, claims, begun, taken)
        finally:
            self._accepting = False
        if flight.quarantine and not flight.apart:
            self._planner.woken()
        elif flight.plan is not None:
            self._planner.charge(flight.plan, taken, (running.claim for running in begun))
        self._turn()
        tell(self.tellers, flight, replies, begun, taken, said)

    def _take(self, flight: Flight, claims: list[bytes], begun: list[Running], taken: dict[str, int]) -> None:
        """Hold and begin what an exchange claimed; count it by lane."""
        now = self._loop.time()
        late = now - flight.sent_at > self._settings.lease
        for i in range(0, len(claims), 3):
            running = Running(Claim.parse(claims[i], claims[i + 1], claims[i + 2]), taken=now)
            lane = running.claim.lane
            if running.claim.kind == "q":
                running.apart = self.struck.found = flight.apart
            else:
                taken[lane] = taken.get(lane, 0) + 1
            self.holdings.take(running, now)
            if not self._claiming:  # it came after the stop: back, uncharged
                running.outcome = Release(Reason.SHUTDOWN)
                self.ended(running)
            elif late:
                self.standing.doubt(running)
            else:
                self._begin(running)
                begun.append(running)

    def _ask_paused(self) -> None:
        """Paused lanes are not read; that they run again is heard by asking."""
        self._planner.ask_paused()
        self.kick()

    def _begin(self, running: Running) -> None:
        if self._start(running):
            self.holdings.occupy(running)
        else:
            self.holdings.no_slot(running)

    # --- failures

    def _failed(self, flight: Flight, error: BaseException) -> None:
        """Was the call executed? Unknown: its rows are sent again, its claims are offered back."""
        self._give_up(flight)
        if isinstance(error, ReplyError) and not passes(error):
            self._unsent.refused(flight, error)
        else:
            log.warning("exchange failed: %s", error)
        self.session_lost()

    def _give_up(self, flight: Flight) -> None:
        if flight in self._flights:
            self._flights.remove(flight)
        if flight.quarantine:
            self.struck.forget()
        self._unsent.put_back(flight)

    # --- session

    def _renewed(self, pending: list[Entry]) -> None:
        """There is a session again: what Redis delivered to us and we never heard of is offered."""
        self._offers = self.holdings.unknown_pending(pending)
        self._relist = False
        self._planner.woken()
        self._changed.set()
        self.kick()

    async def close(self) -> None:
        self.calls.close()
        self.renewal.close()
        await self.session.link.close()
