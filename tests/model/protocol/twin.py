"""The readable model beside this one: each step is done there as well, and both must then be the same.

`tests/model` is what the scripts themselves are held against, in random sequences on a real server. Walks
that the twin follows tie the three together: the rules of the protocol model, the readable model, the Lua.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from streamworker.core.job import Candidate as Dead
from streamworker.core.job import Claim as Granted
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from tests.model import claiming, keeping, operating, producing, settling
from tests.model.job import Job
from tests.model.job import Request as Enqueued
from tests.model.protocol import settle_step
from tests.model.protocol.draft import Draft
from tests.model.protocol.likeness import LANE, here_of, id_of, name_of, number_of, there_of, worker_of
from tests.model.protocol.policy import decided, fate
from tests.model.protocol.script import Script
from tests.model.protocol.state import (
    DEAD,
    DIED,
    FAIL,
    HELD,
    MAX_STARTS,
    QUARANTINE,
    READY,
    SLOW,
    SNOOZE,
    UNDELIVERED,
    Enqueue,
    Entry,
    Replay,
    Request,
    State,
)
from tests.model.protocol.stepping import Label, World
from tests.model.shard import Shard
from tests.model.stream import order

#: Verbs of steps that are one script, whole or cut off.
SCRIPTS = frozenset({"sweeps", "recovers", "promotes", "expires", "repairs", "cancels", "enqueues"})
START, LEASE, LONG = 1_700_000_000_000, 30_000, 10**9


class Twin:
    """A shard of the readable model that follows a walk."""

    def __init__(self, world: World, start: State) -> None:
        self.shard = Shard([LANE], now=START, lease_ms=LEASE)
        self.shard.swept_at = START
        self._world = world
        self._entries = 0
        self._fences = 0
        #: What each claim of the protocol model was granted here, by job and fence.
        self._grants: dict[tuple[int, int], Granted] = {}
        self._dead: dict[int, Dead] = {}
        self._granted: list[Granted] = []
        #: Replies that were not the same.
        self.wrong: list[str] = []
        for worker in range(len(start.workers)):
            claiming.open_session(self.shard, name_of(worker), 0)
        if not world.config.producing:
            for job in range(len(start.records)):
                self._enqueue(job)

    # --- following

    def can_follow(self, before: State, label: Label) -> bool:
        """An entry that is read must be the first of its stream, and nothing may be cut off."""
        match label:
            case ("exchange", Request(), pick, cut):
                return not isinstance(cut, int) and (pick is None or self._is_first(before, pick))
            case ("late", _, pick):
                return pick is None or self._is_first(before, pick)
            case ("reads" | "fails to read what it was given:", _, entry):
                return self._is_first(before, entry)
            case ("the fence counter is lost",) | ("the record expires of", _):
                return False
            case (
                ("sweeps" | "recovers" | "promotes" | "expires" | "repairs" | "cancels" | "enqueues"),
                *_,
                cut,
            ):
                return cut is None
        return True

    def follow(self, before: State, label: Label) -> None:
        """Do here what was done there."""
        shard = self.shard
        match label:
            case ("exchange" | "late", Request() as request, pick, *_):
                self._exchange(before, request, pick)
            case ("opens session", worker, number):
                assert claiming.open_session(shard, name_of(worker), before.workers[worker].session) == number
            case ("heartbeat", worker):
                held = [
                    (id_of(job), self._grants[job, claim.fence].fence)
                    for job, claim in enumerate(before.workers[worker].claims)
                    if claim is not None
                ]
                keeping.heartbeat(shard, name_of(worker), held)
            case ("marks the start", _, job, fence):
                assert settling.mark(shard, self._grants[job, fence]) == "OK"
            case ("sweeps", sweeper, entry, _):
                kind, name = self._entry(before, entry)
                for dead in keeping.sweep(shard, name_of(sweeper), LANE, kind, {name})[1]:
                    self._dead[number_of(dead.job_id)] = dead
            case ("repairs", job, _):
                for dead in keeping.repair(shard, [id_of(job)])[1]:
                    self._dead[job] = dead
            case ("recovers", job, _):
                dead = self._dead.pop(job)
                settling.recover(shard, dead, _fate(fate(dead.status, dead.attempt, dead.strikes)))
            case ("promotes", job, _):
                self._promote(job, shard.schedule)
            case ("expires", job, _):
                self._promote(job, shard.deadlines)
            case ("cancels", job, _):
                operating.cancel(shard, id_of(job), None)
            case ("replays, and will again,", job, epoch):
                operating.replay(shard, id_of(job), epoch, epoch)
            case ("late", Replay(job, epoch), _):
                operating.replay(shard, id_of(job), epoch, epoch)
            case ("enqueues" | "enqueues, and will again,", job, *_) | ("late", Enqueue(job), _):
                self._enqueue(job)
            case _:
                self._suffer(before, label)
        self._name_entries()

    def _suffer(self, before: State, label: Label) -> None:
        """What is done to Redis or to a worker, and not by a script."""
        shard = self.shard
        match label:
            case ("the lease runs out of" | "its holder lives, and is too slow for the lease of", job):
                self._job(job).lease_until = shard.now
            case ("cannot settle, and leaves to recovery, job", _, job):
                self._job(job).lease_until = shard.now
            case ("reads" | "fails to read what it was given:", worker, entry):
                kind, name = self._entry(before, entry)
                shard.streams[LANE, kind].deliver(name_of(worker), name)
            case ("is killed" | "is killed by job 0", worker):
                self._kill(name_of(worker))
            case ("has no key in Redis any more", worker):
                del shard.sessions[name_of(worker)]
            case ("the deadline passes of", job):
                self._job(job).deadline = shard.now
                if id_of(job) in shard.deadlines:
                    shard.deadlines[id_of(job)] = shard.now
            case ("the entry is deleted of", job):
                place = self._job(job).entry
                assert place is not None
                shard.streams[LANE, place[0]].entries.pop(place[1])
            case ("the record expires of", job):
                del shard.jobs[id_of(job)]
            case ("the group is made again at 0",):
                for stream in shard.streams.values():
                    stream.destroy_group()
            case ("Redis is away for longer than a lease",):
                shard.hold_ms = LEASE
                for one in shard.jobs.values():
                    one.lease_until = min(one.lease_until, shard.now)
            case ("the hold is over",):
                shard.hold_ms = 0

    def _exchange(self, before: State, request: Request, pick: int | None) -> None:
        offers = [(LANE, *self._entry(before, entry)) for entry in request.offers]
        read_to = {}
        if pick is not None:
            kind, name = self._entry(before, pick)
            read_to[LANE, kind] = name
        if request.settle is not None:
            self._settle(before, request.worker, *request.settle)
        self._name_entries()
        if not (request.limit or request.apart or request.offers):
            return
        fences = {}
        for job in range(len(before.records)):
            self._fences += 1
            fences[id_of(job)] = self._fences
        room = claiming.Room(request.limit, request.limit, {LANE: 0}, {LANE: 1} if request.apart else {})
        claimed = claiming.claim(
            self.shard,
            name_of(request.worker),
            request.session,
            room,
            offers=offers,
            read_to=read_to,
            fences=fences,
        )
        self._granted = claimed.claims

    def _settle(self, before: State, worker: int, job: int, fence: int, outcome: str) -> None:
        granted = self._grants[job, fence]
        known = self.shard.jobs.get(id_of(job))
        attempt, strikes = (known.attempt, known.strikes) if known else (0, 0)
        sent = _outcome(outcome, decided(outcome, attempt, strikes))
        here = settling.settle(self.shard, granted, sent, ran=True)
        there = settle_step.settle(Script(Draft(before), self._world.rules), job, fence, outcome, worker)
        if here.split(" ")[0] != there:
            self.wrong.append(f"the settle of job {job} under fence {fence} is {there} there, {here} here")

    def _promote(self, job: int, times: dict[str, int]) -> None:
        """One job of `schedule` or of `deadlines`, as if nothing else were due."""
        shard = self.shard
        schedule, deadlines = dict(shard.schedule), dict(shard.deadlines)
        listed = id_of(job) in times
        shard.schedule.clear()
        shard.deadlines.clear()
        if listed:
            times[id_of(job)] = shard.now
        keeping.promote(shard, 500)
        known = shard.jobs.get(id_of(job))
        for now, before in ((shard.schedule, schedule), (shard.deadlines, deadlines)):
            if now is times or (known is not None and known.over):
                before.pop(id_of(job), None)
            now.update(before)

    def _enqueue(self, job: int) -> None:
        deadline = LONG if self._world.config.deadline and job == 0 else 0
        delay = LONG if self._world.config.delayed else 0
        key = "key" if self._world.config.keyed else ""
        request = Enqueued(
            id_of(job),
            LANE,
            key=key,
            fingerprint="f",
            deadline_ms=deadline,
            delay_ms=delay,
            max_starts=MAX_STARTS,
        )
        producing.enqueue(self.shard, [request])
        self._name_entries()

    def _kill(self, worker: str) -> None:
        """All dead workers are one, as in the protocol model, and its session is 1."""
        shard = self.shard
        shard.sessions[name_of(DEAD)] = 1
        shard.sessions[worker] = 1
        for job in shard.jobs.values():
            if job.holder == worker and job.held:
                job.holder, job.session = name_of(DEAD), 1
        for stream in shard.streams.values():
            for entry, owner in stream.pending.items():
                if owner == worker:
                    stream.pending[entry] = name_of(DEAD)

    def _name_entries(self) -> None:
        for job in self.shard.jobs.values():
            if job.entry is not None and not job.entry[1]:
                self._entries += 1
                job.entry = (job.entry[0], f"{self._entries}-0")
                self.shard.stream_of(job).entries[job.entry[1]] = (job.id, job.envelope)

    # --- finding

    def _job(self, job: int) -> Job:
        return self.shard.jobs[id_of(job)]

    def _entry(self, state: State, entry: int) -> tuple[str, str]:
        """Kind of stream and id of what the protocol model calls entry number so."""
        return self._alike(state.entries[entry - 1], _honoured(state, entry))[0]

    def _alike(self, wanted: Entry, honoured: bool) -> list[tuple[str, str]]:
        return [
            (kind, name)
            for (_, kind), stream in self.shard.streams.items()
            for name, (job_id, _) in sorted(stream.entries.items(), key=lambda item: order(item[0]))
            if (self._seen(kind, name, job_id)) == (wanted, honoured)
        ]

    def _seen(self, kind: str, name: str, job_id: str) -> tuple[Entry, bool]:
        """An entry of the readable model as the protocol model has it."""
        stream = self.shard.streams[LANE, kind]
        owner = UNDELIVERED
        if name in stream.pending:
            owner = worker_of(stream.pending[name])
        job = self.shard.jobs.get(job_id)
        honoured = job is not None and job.entry == (kind, name)
        return Entry(number_of(job_id), QUARANTINE if kind == "q" else READY, owner), honoured

    def _is_first(self, state: State, entry: int) -> bool:
        """Whether it is the next that its stream would give."""
        alike = self._alike(state.entries[entry - 1], _honoured(state, entry))
        kind, name = alike[0]
        return self.shard.streams[LANE, kind].undelivered()[:1] == [name]

    # --- comparing

    def adopt(self, after: State) -> None:
        """Learn which fence of the protocol model each new claim has, and which leases nobody renews."""
        for number, record in enumerate(after.records):
            if record is not None and record.lease == SLOW:
                self._job(number).lease_until = self.shard.now
        for granted in self._granted:
            job = number_of(granted.job_id)
            record = after.records[job]
            if record is not None and record.status in HELD:
                self._grants[job, record.fence] = granted
        self._granted = []

    def differences(self, state: State) -> Iterator[str]:
        """What is not the same there and here."""
        yield from self.wrong
        for number, record in enumerate(state.records):
            job = self.shard.jobs.get(id_of(number))
            if record is None or job is None:
                if (record is None) != (job is None):
                    yield f"job {number}: {record} there, {job} here"
                continue
            there, here = there_of(state, number, record), here_of(self.shard, number, job)
            for name in there:
                if there[name] != here[name]:
                    yield f"job {number} has {name} {there[name]} there, {here[name]} here"
        there_entries = Counter((one, _honoured(state, at)) for at, one in enumerate(state.entries, 1))
        here_entries = Counter(
            self._seen(kind, name, job_id)
            for (_, kind), stream in self.shard.streams.items()
            for name, (job_id, _) in stream.entries.items()
        )
        if there_entries != here_entries:
            yield f"entries {there_entries} there, {here_entries} here"
        for number, worker in enumerate(state.workers):
            if self.shard.sessions.get(name_of(number), 0) != worker.stored:
                yield f"worker {number} has session {worker.stored} there"
        key = self.shard.keys.get("key")
        here_key = None if key is None else (number_of(key.job_id), key.state == "open")
        if here_key != state.key:
            yield f"key {state.key} there, {here_key} here"


def _honoured(state: State, entry: int) -> bool:
    record = state.records[state.entries[entry - 1].job]
    return record is not None and record.entry == entry


def _outcome(outcome: str, sent: str) -> Outcome:
    reason = Reason.DIED if outcome == DIED else Reason.ERROR
    match sent:
        case "success":
            return Success()
        case "retry":
            return Retry(0 if outcome == DIED else 1000, ErrorClass.TRANSIENT, "e", "", reason=reason)
        case "fail":
            return Fail(ErrorClass.PERSISTENT, "e", "", reason)
        case _:
            return Release(Reason.SNOOZED, 1000) if outcome == SNOOZE else Release(Reason.SHUTDOWN)


def _fate(decision: str) -> Retry | Fail:
    if decision == FAIL:
        return Fail(ErrorClass.UNKNOWN, "worker_lost", "", Reason.RECOVERED)
    return Retry(0, ErrorClass.UNKNOWN, "worker_lost", "", reason=Reason.RECOVERED)
