"""The judge of a run: what handlers wrote down themselves, against what Redis says happened.

Handlers write each start and end in a journal of their own, a file that a killed process cannot take
along. `judge` compares it with the accepted jobs and with the event log, `leftovers` looks at what Redis
still holds. Both return sentences, so that a test shows all that is wrong at once: `assert judge(...) == []`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from streamworker import Context
from streamworker.core.job import Claim, Record
from streamworker.core.states import TERMINAL
from streamworker.store import scripts
from streamworker.store.events import Transition, decode
from streamworker.store.keys import GROUP, STREAM_SUFFIX, Keys, is_live_state
from tests.chaos import account, rules
from tests.chaos.checker import JOB_RULES
from tests.chaos.history import Accepted, End, History, Life, Limits, Start, Told, lives
from tests.chaos.holdings import holdings

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Mark:
    """One line of the journal. `at` is in seconds since the epoch, by the clock that all processes share."""

    what: str  # start or end
    job_id: str
    attempt: int
    fence: int
    pid: int
    at: float


class Journal:
    """A file that handlers of any process append to; what is written survives the writer's death."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def start(self, ctx: Context) -> None:
        """Write that the handler began. Call it first."""
        self._write("start", ctx)

    def end(self, ctx: Context) -> None:
        """Write that the handler is about to return. Call it last."""
        self._write("end", ctx)

    def _write(self, what: str, ctx: Context) -> None:
        line = f"{what} {ctx.job_id} {ctx.attempt} {ctx.fence} {os.getpid()} {time.time_ns()}\n".encode()
        # One write to a file opened for appending: lines of many processes never mix, and SIGKILL loses none.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def marks(self) -> list[Mark]:
        """Everything written so far, in order."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text().splitlines():
            what, job_id, attempt, fence, pid, at = line.split(" ")
            found.append(Mark(what, job_id, int(attempt), int(fence), int(pid), int(at) / 1e9))
        return found

    def starts(self, job_id: str | None = None) -> list[Mark]:
        """The starts, of one job or of all."""
        return [mark for mark in self.marks() if mark.what == "start" and job_id in (None, mark.job_id)]

    def running(self) -> list[Mark]:
        """Starts without an end: what runs, or died."""
        marks = self.marks()
        ended = {(mark.job_id, mark.fence) for mark in marks if mark.what == "end"}
        return [mark for mark in marks if mark.what == "start" and (mark.job_id, mark.fence) not in ended]


class Observer:
    """A test's own eyes on one namespace, past every proxy. A context manager."""

    def __init__(self, url: str, namespace: str) -> None:
        self.keys = Keys(namespace)
        self.redis: Any = redis.Redis.from_url(
            url, protocol=2, socket_timeout=10, retry=Retry(NoBackoff(), 0)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.redis.close()

    def transitions(self, job_id: str | None = None) -> list[Transition]:
        """The event log, of one job or of all."""
        found: list[Transition] = []
        start = "-"
        while page := self.redis.xrange(self.keys.events, start, "+", _PAGE):
            for _, fields in page:
                found.extend(each for each in decode(fields) if job_id in (None, each.job_id))
            start = f"({page[-1][0].decode()}"
        return found

    def path(self, job_id: str) -> list[str]:
        """The states that a job went through, in order."""
        return [str(each.to_status) for each in self.transitions(job_id)]

    def record(self, job_id: str) -> Record:
        """A job's record; fails when there is none."""
        raw = self.redis.get(self.keys.job(job_id))
        assert raw is not None, f"job {job_id} has no record"
        return Record.parse(job_id, raw)

    def statuses(self, job_ids: Iterable[str]) -> Counter[str]:
        """How many of the jobs are in which state."""
        pipeline = self.redis.pipeline(transaction=False)
        for job_id in job_ids:
            pipeline.get(self.keys.job(job_id))
        return Counter(raw.decode().split(" ")[0] if raw else "missing" for raw in pipeline.execute())

    def all_over(self, job_ids: Collection[str]) -> bool:
        """Whether every one of the jobs has come to an end."""
        return set(self.statuses(job_ids)) <= {str(status) for status in TERMINAL}

    def dead_letters(self) -> dict[str, dict[str, str]]:
        """The dead letters by job id."""
        found = {}
        for _, raw in self.redis.xrange(self.keys.dlq):
            fields = {name.decode(): value.decode("utf-8", "replace") for name, value in raw.items()}
            found[fields["id"]] = fields
        return found

    def stats(self) -> dict[str, int]:
        """The counters."""
        return {name.decode(): int(value) for name, value in self.redis.hgetall(self.keys.stats).items()}

    def pending(self, lane: str, kind: str = "a") -> int:
        """How many entries of a lane's stream are delivered and not acknowledged."""
        stream = self.keys.stream(lane, kind)
        if not self.redis.exists(stream) or not self.redis.xinfo_groups(stream):
            return 0
        return int(self.redis.xpending(stream, GROUP)["pending"])

    def claim_as_ghost(self, lane: str) -> str:
        """Claim a job of a lane for 100 ms as a worker that was killed right after; the job's id."""

        def send(call: scripts.Call) -> Any:
            return self.redis.eval(call.script.text, 1, self.keys.tag, *call.argv)

        session = int(send(scripts.session(worker="ghost", own=0, liveness_ms=100, rows=())))
        call = scripts.claim(
            clock="",
            worker="ghost",
            session=session,
            lease_ms=100,
            retention_ms=scripts.RETENTION_MS,
            limit=1,
            shared=0,
            offers="",
            plan=f"{lane} 1 0 0",
        )
        head, job_id, envelope = send(call)[1]
        return Claim.parse(head, job_id, envelope).job_id

    def sweeps(self) -> int | None:
        """When the last sweep was that takes the dead, in ms since the epoch; None while none does."""
        at, hold = self.redis.hmget(self.keys.sweep, "at", "hold")
        return int(at) if at and hold == b"0" else None

    def leftovers(self, *, lanes: Iterable[str] = ("priority", "normal")) -> list[str]:
        """What is wrong with a namespace in which every job is over."""
        return list(self._leftovers(lanes))

    def _leftovers(self, lanes: Iterable[str]) -> Iterator[str]:
        for lane in lanes:
            for kind in STREAM_SUFFIX:
                stream = self.keys.stream(lane, kind)
                if length := self.redis.xlen(stream):
                    yield f"{stream} still holds {length} entries"
                if pending := self.pending(lane, kind):
                    yield f"{stream} still has {pending} pending"
        for name in (self.keys.schedule, self.keys.deadlines):
            if members := self.redis.zrange(name, 0, 5):
                yield f"{name} still holds {members}"
        for name, value in self.stats().items():
            if name.partition(":")[0] in ("queued", "scheduled", "in_flight") and value:
                yield f"stats say {name} = {value}, but nothing is open"
        per_job = (self.keys.job(""), self.keys.body(""), self.keys.key(""))
        for raw in self.redis.scan_iter(match=f"{self.keys.tag}:*", count=1000):
            name = raw.decode("utf-8", "backslashreplace")
            if (name.startswith(per_job) or not is_live_state(name)) and self.redis.ttl(raw) == -1:
                yield f"{name} has no TTL, but no job is open"


@dataclass(frozen=True, slots=True)
class Allowance:
    """How often a job may start, for reasons that are no fault."""

    #: Starts of one job at most, however it went.
    starts: int = 4
    #: Starts, over all jobs, that repeat one which no outcome ended: what was in flight when workers died.
    repeated: int = 0


def judge(
    *,
    accepted: Collection[str],
    transitions: Sequence[Transition],
    marks: Sequence[Mark],
    allowance: Allowance = Allowance(),
    maybe: Collection[str] = (),
) -> list[str]:
    """Return everything that is wrong with a finished run, by the rules of the chaos runs.

    Here nobody has noted the faults: starts that repeat one without an outcome are only counted. `maybe` are
    jobs whose enqueue was never answered: they may be missing, but not half there.
    """
    history = History(
        Limits(lease=1.0),
        accepted=[Accepted(job_id, "", "") for job_id in accepted],
        maybe=maybe,
        starts=[
            Start(mark.job_id, mark.attempt, mark.fence, str(mark.pid), mark.at)
            for mark in marks
            if mark.what == "start"
        ],
        ends=[
            End(mark.job_id, mark.fence, str(mark.pid), mark.at, Told.RETURNED)
            for mark in marks
            if mark.what == "end"
        ],
        transitions=transitions,
    )
    jobs = lives(history)
    violations = [*account.nothing_lost(history, jobs), *account.nothing_unasked(history, jobs)]
    violations += (violation for life in jobs.values() for rule in JOB_RULES for violation in rule(life))
    found = [str(violation) for violation in violations]
    for job_id, life in jobs.items():
        if len(life.starts) > allowance.starts:
            found.append(f"{job_id} started {len(life.starts)} times, {allowance.starts} are allowed")
    repeated = {job_id: count for job_id, life in jobs.items() if (count := _repeated(life)) > 0}
    if sum(repeated.values()) > allowance.repeated:
        found.append(
            f"{sum(repeated.values())} starts repeat one that came to no outcome, and {allowance.repeated} "
            f"were in flight when workers died: {repeated}"
        )
    return found


def _repeated(life: Life) -> int:
    return sum(1 for _ in rules.repeated(holdings(life)))
