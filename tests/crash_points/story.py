"""One point: a process dies there, another takes its place, all comes to its end, and the judge looks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamworker import SyncClient
from streamworker.core.job import Record
from streamworker.core.states import Disposition
from streamworker.store import scripts
from streamworker.store.connection import SyncLink
from streamworker.store.events import decode
from streamworker.store.keys import Keys
from tests.chaos.checker import check
from tests.chaos.collect import FinalReader
from tests.chaos.history import Accepted, End, Fault, FaultKind, History, Limits, Start
from tests.chaos.journal import Journals
from tests.chaos.log_reader import own_client
from tests.crash_points.life import LEASE, ONE, Life, be_client, be_worker
from tests.crash_points.points import Point, Role
from tests.waiting import wait_until

#: Seconds that a point may take on a busy machine.
PATIENCE = 60.0
#: Seconds beyond D6's bound, for the same reason: with such a lease a busy keeper's pause is an outage.
MARGIN = 30.0
#: The worker that is dead from the beginning.
GONE = "gone"

#: Forks from a process that has imported everything: a worker is up in some milliseconds.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.crash_points.life"])
#: Every start looks at all other processes, and an exit code can be read only once.
_one_at_a_time = threading.Lock()


def exit_code(process: Any) -> int | None:
    """The process's, once it has one: minus the number of the signal that ended it."""
    with _one_at_a_time:
        code: int | None = process.exitcode
        return code


def wait_for_end(process: Any) -> int | None:
    """Its exit code; None when it goes on for longer than is patient."""
    until = time.monotonic() + PATIENCE
    while (code := exit_code(process)) is None and time.monotonic() < until:
        time.sleep(0.01)
    return code


class NotReached(AssertionError):
    """The process did not die: the point is not where it was thought to be."""


@dataclass(eq=False)
class Story:
    """The lives in one namespace."""

    point: Point
    url: str
    namespace: str
    folder: Path
    lives: list[tuple[Life, Any]] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keys = Keys(self.namespace)
        self.redis: Any = own_client(self.url)
        self.final = FinalReader(self.redis, self.keys, ("priority", "normal"))

    # --- lives

    def begin(self, do: Callable[[Life], None], point: Point | None = None) -> Any:
        """Fork a process; it dies at the point."""
        life = Life(len(self.lives) + 1, self.url, self.namespace, self.folder, point)
        process = _forks.Process(target=do, args=(life,), daemon=True)
        with _one_at_a_time:
            process.start()
        self.lives.append((life, process))
        return process

    def worker_name(self, number: int) -> str:
        """Its id in the log; one that never had any claimed nothing."""
        path = self.lives[number - 1][0].name_file
        return path.read_text() if path.exists() else f"worker-{number}"

    def died(self, name: str) -> None:
        """A worker is dead as of now; a successor sweeps within a second."""
        now = time.time()
        self.faults.append(Fault(FaultKind.KILL, now, None, name, now + LEASE))

    def wait_dead(self, process: Any) -> bool:
        """Wait until the point is reached; False: that later call did not come. Raises NotReached."""
        later = self.point.nth > 1
        until = time.monotonic() + PATIENCE
        while (code := exit_code(process)) is None and time.monotonic() < until:
            if later and self.over():
                return False
            time.sleep(0.01)
        if code == -signal.SIGKILL:
            return True
        if later and code == 0:
            return False
        raise NotReached(f"{self.point}: the process ended with {code}")

    # --- jobs

    def enqueue(self, *wanted: tuple[str, dict[str, Any]]) -> None:
        """Jobs that are there before the worker is."""
        with SyncClient(self.url, app="crash", namespace=self.namespace) as client:
            for task, args in wanted:
                job = client.enqueue(task, args)
                self.accepted.append(Accepted(job.id, task, "normal", job.disposition))

    def leave_a_dead_claim(self) -> None:
        """A worker had claimed and begun the first job that waits, and is gone."""
        link = SyncLink(self.url)

        def run(call: scripts.Call) -> Any:
            return link.script(call.script, self.keys.tag, *call.argv)

        lease = round(LEASE * 1000)
        session = int(run(scripts.session(worker=GONE, own=0, liveness_ms=60_000, rows=("host", "h"))))
        claim = scripts.claim(
            clock="",
            worker=GONE,
            session=session,
            lease_ms=lease,
            retention_ms=scripts.RETENTION_MS,
            limit=1,
            shared=1,
            offers="",
            plan="normal 0 1 0",
        )
        verdict, claims = run(claim)
        assert (verdict, len(claims)) == (b"OK", 3)
        self.died(GONE)
        link.close()

    def is_waited_for(self) -> bool:
        """Whether somebody has said that they wait for the result of a job that is not over."""
        records = (self.redis.get(key) for key in self.redis.scan_iter(match=self.keys.job("*")))
        return any(Record.parse("", raw).text("wa") for raw in records if raw is not None)

    def over(self) -> bool:
        """Whether nothing is open, and all that was accepted has ended."""
        return not self.final.counters()

    # --- the end

    def judge(self) -> list[str]:
        """What is wrong."""
        journals = Journals(self.folder)
        marks = journals.read()
        edges = [edge for _, fields in self.redis.xrange(self.keys.events) for edge in decode(fields)]
        seen = {edge.job_id for edge in edges}
        known = {one.job_id for one in self.accepted}
        history = History(
            Limits(lease=LEASE, margin=MARGIN),
            accepted=self.accepted,
            # A producer that died may have placed more than it was told of.
            maybe=seen - known if self.point.role is Role.CLIENT else (),
            starts=[
                Start(mark.job_id, mark.attempt, mark.fence, self.worker_name(mark.number), mark.at)
                for mark in marks
                if mark.told is None
            ],
            ends=[
                End(mark.job_id, mark.fence, self.worker_name(mark.number), mark.at, mark.told)
                for mark in marks
                if mark.told is not None
            ],
            transitions=edges,
            faults=self.faults,
            final=self.final.read(seen),
        )
        return [str(violation) for violation in check(history)]


@contextmanager
def story_of(point: Point, url: str, namespace: str) -> Iterator[Story]:
    """A story in a folder of its own; nobody of it outlives the block."""
    with tempfile.TemporaryDirectory(prefix="streamworker-crash-") as folder:
        story = Story(point, url, namespace, Path(folder))
        try:
            yield story
        finally:
            for _, process in story.lives:
                if exit_code(process) is None:
                    process.kill()
                    wait_for_end(process)
            story.redis.close()


def play(point: Point, url: str, namespace: str) -> list[str]:
    """Kill a process at the point, and say what is wrong in the end. Raises NotReached."""
    with story_of(point, url, namespace) as story:
        match point.role:
            case Role.CLIENT:
                _play_client(story)
            case _:
                _play_worker(story)
        wrong = story.judge()
        if point.role is Role.CLIENT:
            wrong += _wrong_keys(story)
        return wrong


def _play_worker(story: Story) -> None:
    leaving = story.point.role is Role.LEAVING
    story.enqueue(("work", {"seconds": 0.2}))
    story.leave_a_dead_claim()
    second = ("hold", {}) if leaving else ("work", {"seconds": 0.2})
    story.enqueue(second, ("flaky", {}), ("quick", {"number": 1}))
    first = story.begin(be_worker, story.point)
    if leaving:
        journal = story.folder / "1.journal"
        wait_until(
            lambda: journal.exists() and journal.read_bytes().count(b"start") > 2,
            timeout=PATIENCE,
            what="its jobs run",
        )
        os.kill(first.pid, signal.SIGTERM)
    last = first
    if story.wait_dead(first):
        story.died(story.worker_name(1))
        last = story.begin(be_worker)
    story.lives[0][0].go_file.touch()
    _end_with(story, last)


def _play_client(story: Story) -> None:
    worker = story.begin(be_worker)
    first = story.begin(be_client, story.point)
    wait_until(
        lambda: story.is_waited_for() or exit_code(first) is not None,
        timeout=PATIENCE,
        what=f"{story.point}: the producer waits for a result, or is dead",
    )
    story.lives[0][0].go_file.touch()
    story.wait_dead(first)
    again = story.begin(be_client)
    code = wait_for_end(again)
    assert code == 0, f"{story.point}: begun again, the producer ended with {code}"
    for line in story.lives[0][0].told_file.read_text().splitlines():
        job_id, disposition, key = line.split(" ")
        if all(one.job_id != job_id for one in story.accepted):
            task = "hold" if key == ONE else "quick"
            story.accepted.append(Accepted(job_id, task, "normal", Disposition(disposition), key))
    _end_with(story, worker)


def _end_with(story: Story, worker: Any) -> None:
    """Wait for the end of all jobs, and of the worker."""
    wait_until(story.over, timeout=PATIENCE, what=f"{story.point}: all jobs are over")
    number = next(life.number for life, process in story.lives if process is worker)
    wait_until(
        lambda: story.redis.exists(story.keys.worker(story.worker_name(number))),
        timeout=PATIENCE,
        what=f"{story.point}: the last worker is up, and hears signals",
    )
    os.kill(worker.pid, signal.SIGTERM)
    code = wait_for_end(worker)
    assert code == 0, f"{story.point}: the last worker ended with {code}"


def _wrong_keys(story: Story) -> Iterator[str]:
    """Begun again, the producer made no second job for a key; but for the one whose key a cancel freed."""
    jobs = [edge for _, fields in story.redis.xrange(story.keys.events) for edge in decode(fields)]
    made = [edge.job_id for edge in jobs if edge.from_status is None]
    cancelled = {edge.job_id for edge in jobs if edge.reason == "cancelled"}
    kept = [job_id for job_id in made if job_id not in cancelled]
    if len(kept) != 4:
        yield f"{len(kept)} jobs for four keys: {made}, of which {cancelled} were cancelled"
