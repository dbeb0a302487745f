"""The workers of a run: each behind a proxy of its own, replaced when it dies, and known by number."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.chaos.journal import Journals
from tests.processes import WorkerProcess
from tests.proxy import Proxy
from tests.waiting import wait_until

#: What a worker prints once it claims jobs.
_UP = re.compile(r"worker (\S+): \d+ slots, lanes")
#: Seconds between two looks at the fleet.
LOOK = 0.02


@dataclass(slots=True, eq=False)
class Worker:
    """One worker process. It stays the same object when it is dead; its place gets another."""

    number: int
    place: Place
    process: WorkerProcess
    #: The id that it has in the log, once it claims jobs.
    id: str | None = None
    up_at: float | None = None
    #: When the bench killed it, or found it dead.
    died_at: float | None = None
    frozen: list[tuple[float, float | None]] = field(default_factory=list)
    #: It was told to stop: its end is no fault.
    retired: bool = False

    @property
    def name(self) -> str:
        """Its id, or what stands for it: one that was never up claimed nothing."""
        return self.id or f"worker-{self.number}"

    @property
    def alive(self) -> bool:
        return self.died_at is None and self.process.returncode is None

    @property
    def is_frozen(self) -> bool:
        return bool(self.frozen) and self.frozen[-1][1] is None

    def able_from(self, moment: float) -> float | None:
        """The first time from `moment` on at which it could sweep; None: never, as far as we know."""
        if self.up_at is None:
            return None
        at = max(moment, self.up_at)
        for begin, end in self.frozen:
            if begin <= at and (end is None or at < end):
                if end is None:
                    return None
                at = end
        return at if self.died_at is None or at < self.died_at else None


@dataclass(slots=True, eq=False)
class Place:
    """One place in the fleet: a proxy, and the worker behind it."""

    proxy: Proxy
    arguments: Sequence[str]
    worker: Worker | None = None


class Fleet:
    """Starts workers, watches them, and replaces the dead. A context manager; leaving kills what is left."""

    def __init__(
        self,
        app: str,
        *,
        port: int,
        namespace: str,
        env: Mapping[str, str],
        journals: Journals,
        died: Callable[[Worker], None],
        respawn: bool = True,
    ) -> None:
        """`died` is told of each worker that claimed jobs and ended although nobody had asked it to."""
        self._app = app
        self._port = port
        self._namespace = namespace
        self._env = dict(env)
        self._journals = journals
        self._died = died
        self.respawn = respawn
        self.places: list[Place] = []
        self.workers: list[Worker] = []
        self._stack = ExitStack()
        self._stopping = threading.Event()
        self._lock = threading.RLock()
        self._monitor = threading.Thread(target=self._watch, name="chaos-fleet", daemon=True)

    def __enter__(self) -> Fleet:
        self._monitor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._monitor.join()
        self._stack.close()

    @property
    def alive(self) -> list[Worker]:
        """The workers that live, frozen or not."""
        return [worker for worker in self.workers if worker.alive]

    @property
    def up(self) -> list[Worker]:
        """Those of them that claim jobs."""
        return [worker for worker in self.alive if worker.up_at is not None]

    def add(self, *arguments: str) -> Worker:
        """Start one more worker in a place of its own."""
        proxy = self._stack.enter_context(Proxy(self._port))
        with self._lock:
            place = Place(proxy, arguments)
            self.places.append(place)
            return self._start(place)

    def replace(self, worker: Worker) -> Worker:
        """Start another worker in the place of one that has ended."""
        with self._lock:
            return self._start(worker.place)

    def wait_up(self, worker: Worker, timeout: float = 30.0) -> None:
        """Wait until it claims jobs; fails at once if it ends before."""

        def up() -> bool:
            if worker.up_at is None and not worker.alive:
                raise AssertionError(
                    f"worker {worker.number} ended with {worker.process.returncode} before it was up; "
                    f"its log ends with:\n{worker.process.log_tail()}"
                )
            return worker.up_at is not None

        wait_until(up, timeout=timeout, what=f"worker {worker.number} is up")

    def all_up(self) -> bool:
        """Whether every place has a worker that claims jobs, those apart that were told to stop."""
        workers = [place.worker for place in self.places]
        return all(worker is not None and (worker.retired or worker.up_at is not None) for worker in workers)

    def last_words(self) -> str:
        """The ends of the logs of the youngest workers."""
        found = []
        for worker in self.workers[-len(self.places) :]:
            found.append(f"{worker.number} ({worker.process.returncode}):\n{worker.process.log_tail(5)}")
        return "\n".join(found)

    def stop(self, timeout: float = 30.0) -> list[str]:
        """Ask all to stop; returns what was wrong with their ends."""
        self.respawn = False
        with self._lock:
            living = [worker for worker in self.workers if worker.alive]
            for worker in living:
                worker.retired = True
        found = []
        for worker in living:
            worker.process.terminate()
        for worker in living:
            code = worker.process.wait(timeout)
            if code != 0:
                found.append(f"worker {worker.number} ended with {code}:\n{worker.process.log_tail()}")
        return found

    def can_sweep_from(self, moment: float, *, but: Worker | None = None) -> float | None:
        """The first time from `moment` on at which another worker than `but` could sweep; None: never."""
        times = [worker.able_from(moment) for worker in self.workers if worker is not but]
        return min((each for each in times if each is not None), default=None)

    def by_number(self) -> dict[int, Worker]:
        return {worker.number: worker for worker in self.workers}

    def _start(self, place: Place) -> Worker:
        place.proxy.forget()  # what was meant for the one before
        number = len(self.workers) + 1
        process = WorkerProcess(
            self._app,
            *place.arguments,
            redis_url=place.proxy.url,
            namespace=self._namespace,
            env={**self._env, "CHAOS_JOURNAL": str(self._journals.path(number))},
        )
        self._stack.enter_context(process)
        place.worker = Worker(number, place, process)
        self.workers.append(place.worker)
        return place.worker

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK):
            with self._lock:
                for worker in list(self._news()):
                    self._bury(worker)

    def _news(self) -> Iterator[Worker]:
        """Those that have died; on the way, notes who is up."""
        for place in self.places:
            worker = place.worker
            if worker is None or worker.retired:
                continue
            if worker.up_at is None and (found := _UP.search(worker.process.log())):
                worker.id, worker.up_at = found[1], time.time()
            if worker.process.returncode is not None:
                yield worker

    def _bury(self, worker: Worker) -> None:
        worker.place.worker = None
        if worker.died_at is None:  # by itself: the bench would have said so
            worker.died_at = time.time()
            if worker.up_at is not None:
                self._died(worker)
        if self.respawn:
            self._start(worker.place)
