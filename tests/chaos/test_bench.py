"""The bench sees what happens: faults are noted as what they were, and what is really wrong is found."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from streamworker.request import Options, Request
from tests.chaos.bench import Bench
from tests.chaos.checker import Kind
from tests.chaos.history import FaultKind
from tests.chaos.stalls import StallWatch
from tests.waiting import wait_until


def test_a_job_that_is_taken_away_is_found_to_be_lost() -> None:
    """The judge knows what was accepted, and what should have come of it."""
    with Bench(workers=1) as bench:
        kept = bench.enqueue("quick")
        bench.wait_over([kept])
        assert bench.stop_worker(bench.fleet.workers[0]) == 0
        taken = bench.enqueue("quick")
        bench.redis.delete(bench.keys.stream("normal"), bench.keys.job(taken))

        run = bench.judge(timeout=0.2)

    assert [violation.job_id for violation in run.violations if violation.kind is Kind.LOST] == [taken]
    # Its counter is all that is left of it.
    assert [violation.kind for violation in run.violations if violation.job_id is None] == [Kind.LEFT_OVER]


def test_entries_that_were_trimmed_unread_are_counted() -> None:
    with Bench(workers=1) as bench:
        first = bench.enqueue("quick")
        bench.wait_over([first])
        bench.kill_server()
        bench.restart_server()
        bench.redis.hincrby(bench.keys.stats, "sequence", 3)
        second = bench.enqueue("quick")
        bench.wait_over([second])

        run = bench.judge()

    assert run.history.unread == 3
    assert [violation.kind for violation in run.violations] == [Kind.UNREAD]


def test_moments_in_which_the_machine_stood_still_are_noted_as_stretches() -> None:
    watch = StallWatch(list, least=0.3)
    for begin, end in ((1.0, 1.2), (1.3, 1.5), (5.0, 5.2), (9.0, 9.4)):
        watch.note(begin, end)

    assert watch.take() == [(1.0, 1.5), (9.0, 9.4)]
    assert watch.take() == []


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waits")
def test_processes_that_wait_for_a_processor_are_a_stall() -> None:
    """Four that never stop, on one processor: each waits for three quarters of the time."""
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(4)]
    try:
        with StallWatch(lambda: [each.pid for each in busy], least=0.3) as watch:
            began = time.time()
            wait_until(lambda: any(end > began + 0.3 for _, end in watch.stalls), what="they wait")
    finally:
        for each in busy:
            each.kill()
            each.wait()


def test_each_judgement_is_about_what_came_after_the_one_before() -> None:
    with Bench() as bench:
        bench.wait_sweeping()
        first = bench.enqueue("hold")
        victim = bench.wait_running(first)
        bench.freeze(victim)

        def taken_over() -> bool:
            return any(mark.job_id == first for worker, mark in bench.running() if worker is not victim)

        wait_until(taken_over, timeout=20, what="another runs it")
        bench.release()
        bench.wait_over([first])
        bench.thaw(victim)
        frozen = bench.judge()
        jobs = bench.enqueue_many([Request("work", {}, Options.of(key=str(n // 2))) for n in range(6)])
        calm = bench.finish()

    assert frozen.violations == calm.violations == []
    assert frozen.figures.duplicates == {FaultKind.FREEZE: 1}
    assert [start.worker == victim.name for start in frozen.starts(first)] == [True, False]
    assert (calm.figures.jobs, len(set(jobs))) == (3, 3)
    assert calm.figures.faults[FaultKind.FREEZE] == 0
