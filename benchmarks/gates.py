"""What gates cost Redis: the same jobs without any, behind shared gates, behind many, behind a lock each.

    python -m benchmarks.gates [--jobs 6400] [--batch 128] [--instructions]

Drives the scripts as one worker does, enqueue included, and counts what the server spends on a job: time by
the kernel's account, or with `--instructions` the instructions under valgrind, which no noise disturbs. Jobs
without gates are run once more by scripts from which the code of gates and turnstiles is taken out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.inside import cpu
from benchmarks.server import Kind, default_kind, find
from streamworker.core.errors import ConnectionLost
from streamworker.core.ids import new_job_id
from streamworker.store import lua, scripts
from streamworker.store.connection import Argument, SyncLink
from streamworker.store.keys import Keys

SCRIPTS = Path(__file__).parents[1] / "lua"
KEYS = Keys("bench")
ENVELOPE = b'{"t":"job","a":{"n":12345,"pad":"' + b"x" * 100 + b'"}}'
LEASE = 30_000
#: Wide enough that no job waits: what passing costs is measured, not waiting.
RATE, HOLDERS = "1000000,1000,1000000", "100000"


@dataclass(frozen=True, slots=True)
class Case:
    """Jobs of one kind, and how much dearer than plain ones they may be."""

    name: str
    gates: Callable[[int], str]
    most: float


CASES = (
    Case("no gates", lambda _: "", 1.0),
    Case(
        "a rate and a limit for all",
        lambda _: f"0 rate:task:job|{RATE} concurrency:task:job|{HOLDERS}",
        1.3,
    ),
    Case(
        "the same over 100 names",
        lambda n: f"0 rate:user:{n % 100}|{RATE} concurrency:user:{n % 100}|{HOLDERS}",
        2.0,
    ),
    Case("a lock of its own each", lambda n: f"0 entity:order:{n}", 2.6),
)


#: How much dearer jobs without gates may be than with scripts that know of none.
MOST_WITHOUT = 1.03
#: What stands for the code of gates and turnstiles in those scripts; jobs without gates never call it.
STUBS = {"gates": "local function open_gates() end\n", "turnstile": "local function open_turnstile() end\n"}


def without_gates(folder: Path) -> Path:
    """The scripts, copied here, without the code of gates."""
    copy = folder / "lua"
    shutil.copytree(SCRIPTS, copy)
    for name, stub in STUBS.items():
        (copy / "fragments" / f"{name}.lua").write_text(stub)
    return copy


class Meter:
    """A server of our own, and what it spends."""

    def __init__(self, folder: Path, *, instructions: bool) -> None:
        self._folder = folder
        self._instructions = instructions
        port = 20_000 + time.time_ns() // 1000 % 20_000
        command = [str(find(Kind.REDIS7 if instructions else default_kind())), "--port", str(port)]
        command += ["--save", "", "--appendonly", "no", "--dir", str(folder)]
        if instructions:
            command = [
                "valgrind",
                "--tool=callgrind",
                "--instr-atstart=no",
                f"--callgrind-out-file={folder / 'callgrind.out'}",
                *command,
            ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.bare = without_gates(folder)
        self.link = SyncLink(f"redis://127.0.0.1:{port}", timeout=60)
        for _ in range(400):
            try:
                self.link.call("PING")
                return
            except ConnectionLost:
                time.sleep(0.05)
        raise SystemExit("the server did not start")

    def spent(self, work: Callable[[], None]) -> float:
        """What the work costs the server: instructions, or nanoseconds."""
        if not self._instructions:
            before = cpu.of_process(self._process.pid)
            work()
            return (cpu.of_process(self._process.pid) - before) * 1e9
        for path in self._folder.glob("callgrind.out*"):
            path.unlink()
        self._control("-z")
        self._control("-i", "on")
        work()
        self._control("-i", "off")
        self._control("-d", "measured")
        (text,) = [path.read_text() for path in self._folder.glob("callgrind.out*")]
        return float(re.findall(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)[-1])

    def _control(self, *arguments: str) -> None:
        command = ["callgrind_control", *arguments, str(self._process.pid)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)

    def close(self) -> None:
        self.link.close()
        self._process.terminate()
        self._process.wait()


@contextmanager
def meter(*, instructions: bool) -> Iterator[Meter]:
    if instructions and not shutil.which("callgrind_control"):
        raise SystemExit("--instructions needs valgrind")
    with tempfile.TemporaryDirectory() as folder:
        one = Meter(Path(folder), instructions=instructions)
        try:
            yield one
        finally:
            one.close()


class Worker:
    """Enqueues jobs and runs them through exchanges, a batch at a time. `folder` has other scripts."""

    def __init__(self, link: SyncLink, batch: int, *, folder: Path | None = None) -> None:
        self._link = link
        self._folder = folder
        self._composed: dict[str, lua.Script] = {}
        self._batch = batch
        self._made = 0
        self._session = int(
            self._send(scripts.session(worker="w", own=0, liveness_ms=600_000, rows=["app", "bench"]))
        )

    def _send(self, call: scripts.Call) -> Any:
        script = call.script
        if self._folder is not None:
            if script.name not in self._composed:
                self._composed[script.name] = lua.compose(self._folder, script.name)
            script = self._composed[script.name]
        return self._link.script(script, KEYS.tag, *call.argv)

    def run(self, jobs: int, case: Case) -> None:
        """Enqueue, claim and settle so many jobs."""
        rows: list[Argument] = []
        for _ in range(0, jobs, self._batch):
            self._enqueue(case)
            rows = self._exchange(self._batch, rows)
        self._exchange(0, rows)

    def _enqueue(self, case: Case) -> None:
        rows: list[Argument] = []
        for _ in range(self._batch):
            self._made += 1
            job_id = new_job_id(now_ms=time.time_ns() // 1_000_000, random=os.urandom(8))
            job = scripts.NewJob(job_id, "job", "normal", ENVELOPE, gates=case.gates(self._made))
            rows += job.row()

        self._send(scripts.enqueue(clock="", marker="", rows=rows))

    def _exchange(self, limit: int, rows: list[Argument]) -> list[Argument]:
        call = scripts.exchange(
            clock="",
            worker="w",
            session=self._session,
            lease_ms=LEASE,
            retention_ms=scripts.RETENTION_MS,
            limit=limit,
            shared=limit,
            offers="",
            plan=f"normal 0 {limit} 0",
            rows=rows,
        )
        verdict, claims, replies = self._send(call)
        assert verdict == b"OK"
        assert all(reply == b"OK" for reply in replies)
        assert len(claims) == 3 * limit, "nobody waits in this bench"
        settled: list[Argument] = []
        for i in range(0, len(claims), 3):
            settled += (f"S {claims[i].decode().split()[6]} 1 returned", claims[i + 1], b"")
        return settled


def measure(jobs: int, batch: int, *, instructions: bool) -> dict[str, float]:
    """What each case costs the server for a job."""
    found = {}
    with meter(instructions=instructions) as one:
        worker = Worker(one.link, batch)
        for case in CASES:
            worker.run(2 * batch, case)  # scripts are loaded, groups are made
        for case in CASES:
            found[case.name] = one.spent(partial(worker.run, jobs, case)) / jobs
    return found


def measure_without(jobs: int, batch: int, *, instructions: bool) -> tuple[float, float]:
    """What a job without gates costs the server: by scripts that know of none, and by these."""
    found = []
    with meter(instructions=instructions) as one:
        for folder in (one.bare, None):
            worker = Worker(one.link, batch, folder=folder)  # with a session of its own
            worker.run(2 * batch, CASES[0])
            found.append(one.spent(partial(worker.run, jobs, CASES[0])) / jobs)
    bare, full = found
    return bare, full


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gates", description=__doc__)
    parser.add_argument("--jobs", type=int, default=6400)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--instructions", action="store_true", help="count instructions under valgrind")
    options = parser.parse_args()
    found = measure(options.jobs, options.batch, instructions=options.instructions)
    plain = found[CASES[0].name]
    unit = "k instructions" if options.instructions else "µs"
    print(f"| jobs of which each passes | {unit} a job | against none | at most |")
    print("| --- | --- | --- | --- |")
    for case in CASES:
        ratio = found[case.name] / plain
        print(f"| {case.name} | {found[case.name] / 1000:.1f} | {ratio:.2f} | {case.most:.1f} |")
    too_dear = any(found[case.name] > case.most * plain for case in CASES[1:])
    print(f"\n| jobs without gates | {unit} a job without the code of gates | with it | ratio | at most |")
    print("| --- | --- | --- | --- | --- |")
    for size in (options.batch, 1):
        jobs = options.jobs if size > 1 else max(1, options.jobs // 8)  # alone they cost the more
        bare, full = measure_without(jobs, size, instructions=options.instructions)
        ratio = full / bare
        print(f"| {size} a call | {bare / 1000:.1f} | {full / 1000:.1f} | {ratio:.3f} | {MOST_WITHOUT:.2f} |")
        too_dear = too_dear or ratio > MOST_WITHOUT
    return int(too_dear)


if __name__ == "__main__":
    sys.exit(main())
