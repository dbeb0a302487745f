"""The bench of the chaos tests: real servers, real workers, real faults, and one judge at the end.

    with Bench(kind="valkey", lease=1.0, workers=2, concurrency=4) as bench:
        job = bench.enqueue("work", {"seconds": 0.5}, key="k")
        victim = bench.wait_running(job)            # the worker that runs it
        bench.kill(victim)
        run = bench.finish()                        # waits, stops, collects, judges; raises what is wrong
        assert run.path(job) == [...]

Tasks are those of `tests/apps/chaos_jobs.py`, whose handlers write every start and end in a journal. Each
worker is a `streamworker run` process behind a proxy of its own; the dead are replaced (`respawn=False`: they
are not). Producers have a proxy as well. The bench itself looks past all proxies.

Verbs
    workers     add_worker(*args)  kill(w)  freeze(w)  thaw(w)  stop_worker(w)  restart_worker(w)
                keeper()  wait_up()  wait_sweeping()
    server      kill_server()  restart_server()  pause_server()  resume_server()  flush_scripts()
                out_of_memory()  eviction(policy)
    network     black_hole(w)  refuse(w)  restore(w)  cut(w)  delay(seconds, w); without a worker: everybody.
                lose_reply(w)  lose_request(w)  late_request(w); without a worker: the producers.
                w.place.proxy and bench.front (the producers') have finer ones: drop_next_reply(match) …
    hints       delete_hints(rng): liveness, elections and sweep, some of them at random
    jobs        enqueue  enqueue_many  wait_running(job)  wait_over(jobs)  release() lets `hold` go on
    the end     judge(): wait until idle, collect and judge, workers go on; finish(): stop them, and raise
    Postgres    `postgres=True`: workers know of one; bench.postgres can kill, restart, pause …
    to look     redis (a client)  keys  log() (transitions so far)  journals  record(job)  fleet

Every verb notes the fault, so that the judge knows what it explains (`tests/chaos/history.py`).
"""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from streamworker import App, SyncClient
from streamworker.core.job import Record
from streamworker.embedded import EmbeddedServerError
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.request import Options, Request
from streamworker.store.events import Transition
from streamworker.store.keys import Keys
from tests.chaos.accounts import Accounts
from tests.chaos.checker import Violation, check, report
from tests.chaos.collect import FinalReader
from tests.chaos.faults import Faults
from tests.chaos.figures import Figures
from tests.chaos.fleet import Fleet, Worker
from tests.chaos.history import End, Fault, FaultKind, Figure, History, Ill, Limits, Paused, Start, declared
from tests.chaos.journal import Journals, Mark
from tests.chaos.log_reader import LogReader, own_client
from tests.chaos.stalls import StallWatch
from tests.proxy import Proxy
from tests.servers import BenchServer
from tests.waiting import wait_until

#: Seconds that a server may take to come up: it reads its data first.
_START_SECONDS = 90.0
#: How many times longer it may take to be idle as long as something moves.
_PATIENCE = 5
#: Seconds between two looks for the end.
_LOOK = 0.02


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is over: its history, and what the judge says."""

    history: History
    violations: Sequence[Violation]

    @property
    def figures(self) -> Figures:
        return Figures.of(self.history, self.violations)

    def path(self, job_id: str) -> list[str]:
        """The states that a job went through."""
        return [str(edge.to_status) for edge in self.history.transitions if edge.job_id == job_id]

    def starts(self, job_id: str) -> list[Start]:
        """The starts of its handler."""
        return [start for start in self.history.starts if start.job_id == job_id]


class Bench(Faults):
    """One server, a fleet of workers and their producers. A context manager."""

    def __init__(
        self,
        *,
        kind: str = "valkey",
        lease: float = 1.0,
        workers: int = 2,
        concurrency: int = 4,
        arguments: Sequence[str] = (),
        app: str = "chaos_jobs:app",
        appendonly: bool = True,
        fsync: str = "always",
        respawn: bool = True,
        margin: float = 2.0,
        postgres: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a bench; nothing runs before it is entered.

        `lease` in seconds. `arguments` are more options of `streamworker run`. `margin`: seconds beyond D6's
        bound that this machine may take. `app` is one of `tests/apps` that journals as `chaos_jobs` does.
        """
        super().__init__()
        module, _, attribute = app.partition(":")
        self.app: App = getattr(importlib.import_module(f"tests.apps.{module}"), attribute)
        policies = {name: task.policy for name, task in self.app.tasks.items()}
        self.limits = Limits(
            lease=lease,
            attempts={name: policy.retry.attempts for name, policy in policies.items()},
            starts={name: policy.max_starts for name, policy in policies.items()},
            **declared(self.app),
            slots=workers * concurrency,
            margin=margin,
        )
        #: What operators did to gates since the last judgement.
        self.pauses: list[Paused] = []
        self.figures: list[Figure] = []
        #: What dependencies did since then.
        self.illnesses: list[Ill] = []
        self.namespace = "chaos"
        self.keys = Keys(self.namespace)
        self.server = BenchServer(
            kind, appendonly=appendonly, config={"appendfsync": fsync}, start_timeout=_START_SECONDS
        )
        self.accounts = Accounts()
        self.postgres = EmbeddedPostgres() if postgres else None
        self._target = app
        self._count = workers
        self._arguments = ("--concurrency", str(concurrency), "--grace", "5s", *arguments)
        self._respawn = respawn
        self._env = dict(env or {})
        self._stack = ExitStack()
        self._marks: list[Mark] = []
        self._judged: frozenset[str] = frozenset()  # jobs of earlier runs

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _open(self) -> None:
        enter = self._stack.enter_context
        self.directory = Path(enter(tempfile.TemporaryDirectory(prefix="streamworker-chaos-")))
        enter(self.server)
        if self.postgres is not None:
            self._env["STREAMWORKER_POSTGRES_DSN"] = enter(self.postgres).dsn
        self.redis: Any = own_client(self.server.url)
        self._stack.callback(self.redis.close)
        self.reader = enter(LogReader(self.server.url, self.keys))
        self._final = FinalReader(self.redis, self.keys, self.app.lanes)
        self.journals = Journals(self.directory)
        self.front = enter(Proxy(self.server.port))
        self.client = enter(SyncClient(self.front.url, app=self.app.name, namespace=self.namespace))
        self.fleet = enter(
            Fleet(
                self._target,
                port=self.server.port,
                namespace=self.namespace,
                env={
                    "STREAMWORKER_LEASE": str(self.limits.lease),
                    "CHAOS_GO": str(self.directory / "go"),
                    **self._env,
                },
                journals=self.journals,
                died=self.found_dead,
                respawn=self._respawn,
            )
        )
        self._stalls = enter(StallWatch(self._awake, least=self.limits.sweep))
        started = [self.fleet.add(*self._arguments) for _ in range(self._count)]
        for worker in started:
            self.fleet.wait_up(worker)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # Jobs

    def enqueue(self, task: str, args: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Enqueue one job, as `SyncClient.enqueue`; its id."""
        request = Request(task, args or {}, Options.of(**options))
        with self.accounts.placing():
            job = self.client.enqueue(task, args, **options)
        self.accounts.note([request], [job])
        return job.id

    def enqueue_many(self, requests: Sequence[Request]) -> list[str]:
        """Enqueue up to 500 jobs in one call; their ids, those of refused ones left out."""
        with self.accounts.placing():
            jobs = self.client.enqueue_many(requests)
        self.accounts.note(requests, jobs)
        return [job.id for job in jobs]

    def release(self) -> None:
        """Let the handlers of `hold` go on, now and later."""
        (self.directory / "go").touch()

    def wait_running(self, job_id: str, timeout: float = 15.0) -> Worker:
        """Wait until a handler of the job has begun and not ended; the worker that runs it."""

        def running() -> Worker | None:
            return next((worker for worker, mark in self.running() if mark.job_id == job_id), None)

        found = wait_until(running, timeout=timeout, what=f"job {job_id} runs")
        assert found is not None
        return found

    def running(self) -> list[tuple[Worker, Mark]]:
        """What handlers of living workers are at, by their journals."""
        self._marks += self.journals.read()
        workers = self.fleet.by_number()
        marks = [(workers[mark.number], mark) for mark in list(self.journals.running.values())]
        return [(worker, mark) for worker, mark in marks if worker.alive]

    def wait_over(self, job_ids: Collection[str], timeout: float = 60.0) -> None:
        """Wait until all these jobs are over, by the log."""
        wanted = set(job_ids)
        wait_until(lambda: wanted <= self.reader.over, timeout=timeout, what=f"{len(wanted)} jobs are over")

    def log(self, job_id: str | None = None) -> list[Transition]:
        """The transitions since the last judgement, of one job or of all."""
        return [edge for edge in self.reader.seen() if job_id in (None, edge.job_id)]

    def record(self, job_id: str) -> Record:
        """A job's record; fails when there is none."""
        raw = self.redis.get(self.keys.job(job_id))
        assert raw is not None, f"job {job_id} has no record"
        return Record.parse(job_id, raw)

    # Workers

    def add_worker(self, *arguments: str, wait: bool = True) -> Worker:
        """Start one more worker with these options instead of the bench's, if any are given."""
        worker = self.fleet.add(*(arguments or self._arguments))
        if wait:
            self.fleet.wait_up(worker)
        return worker

    def wait_up(self) -> None:
        """Wait until every place has a worker that claims jobs."""
        try:
            wait_until(self.fleet.all_up, timeout=60.0, what="all workers are up")
        except AssertionError as error:
            raise AssertionError(f"{error}; the last ones said:\n{self.fleet.last_words()}") from None

    def wait_sweeping(self, timeout: float = 15.0) -> None:
        """Wait until somebody sweeps and nothing is held back (D6): deaths are found in time from then on."""

        def taken() -> bool:
            return bool(self.redis.hget(self.keys.sweep, "hold") == b"0")

        wait_until(taken, timeout=timeout, what="sweeps take the dead")

    # The end

    def idle(self) -> bool:
        """Whether everything that was accepted, or may have been, is over."""
        over = not self.reader.open and self.accounts.wanted() <= self.reader.over
        return over and not self._final.counters() and not any(n for _, n in self._final.at_gates())

    def wait_idle(self, timeout: float = 60.0) -> bool:
        """Wait until all is over and stays so for half a lease; False: in vain.

        `timeout`: seconds in which nothing moves. A busy machine takes its time, but not for ever.
        """
        moved = self.reader.moved
        until = time.monotonic() + timeout
        last = until + _PATIENCE * timeout
        quiet_since: float | None = None
        while time.monotonic() < min(until, last):
            if self.reader.moved != moved:
                moved, until = self.reader.moved, time.monotonic() + timeout
            if not self.idle():
                quiet_since = None
            elif quiet_since is None:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > self.limits.lease / 2:
                return True
            time.sleep(_LOOK)
        return False

    def judge(self, timeout: float = 60.0) -> Run:
        """Wait until idle, collect the history since the last judgement, and judge it. Workers go on."""
        self.wait_idle(timeout)
        history = self._collect()
        return Run(history, check(history))

    def finish(self, timeout: float = 60.0) -> Run:
        """The last judgement: stops the workers too. Raises AssertionError with what is wrong."""
        self.wait_idle(timeout)
        problems = [*self.problems, *self.fleet.stop()]
        run = self.judge(1.0)
        problems += [report(run.violations)] if run.violations else []
        assert not problems, "\n".join(problems)
        return run

    def _awake(self) -> list[int]:
        """The processes that the machine has to let run."""
        pids = [worker.process.pid for worker in self.fleet.up if not worker.is_frozen]
        with suppress(EmbeddedServerError):  # a fault may have it down
            pids.append(self.server.pid)
        return pids

    def _collect(self) -> History:
        self._marks += self.journals.read()
        marks, self._marks = self._marks, []
        transitions, unread = self.reader.take()
        accepted, maybe = self.accounts.take()
        names = {number: worker.name for number, worker in self.fleet.by_number().items()}
        job_ids = {edge.job_id for edge in transitions}
        starts = [
            Start(mark.job_id, mark.attempt, mark.fence, names[mark.number], mark.at, mark.holds)
            for mark in marks
            if mark.told is None
        ]
        # A handler whose claim was taken over may end after all was judged; it may not start.
        ends = [
            End(mark.job_id, mark.fence, names[mark.number], mark.at, mark.told)
            for mark in marks
            if mark.told is not None and mark.job_id not in self._judged
        ]
        faults = self.noted()
        self.forget()
        faults += [Fault(FaultKind.STALL, *stall, sweeps_from=stall[1]) for stall in self._stalls.take()]
        self._judged |= job_ids
        pauses, self.pauses = self.pauses, []
        figures, self.figures = self.figures, []
        illnesses, self.illnesses = self.illnesses, []
        return History(
            self.limits,
            accepted=accepted,
            maybe=maybe,
            starts=starts,
            ends=ends,
            transitions=transitions,
            unread=unread,
            faults=faults,
            pauses=pauses,
            figures=figures,
            illnesses=illnesses,
            final=self._final.read(job_ids),
        )
