"""Run the simulation.

    python -m tests.simulation SEED [--trace]        one seed, and what is wrong with it
    python -m tests.simulation --seeds 10000         many seeds, from 0 on or from --first
    python -m tests.simulation --seconds 3600        as many as there is time for

`--lua FOLDER` takes other scripts than the package's. Ends with status 1 when a seed fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.servers import KINDS
from tests.simulation.simulation import Result
from tests.simulation.stage import Stage


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--trace", action="store_true", help="print all that happened")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seconds", type=float, help="until so much time is over, however many")
    parser.add_argument("--server", choices=KINDS, default="valkey")
    parser.add_argument("--lua", type=Path, help="a folder with other scripts")
    parser.add_argument("--keep-going", action="store_true", help="do not end at the first seed that fails")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    with Stage(given.server, folder=given.lua) as stage:
        if given.seed is not None:
            return _one(stage.run(given.seed), trace=given.trace)
        return _many(stage, given)


def _one(result: Result, *, trace: bool) -> int:
    for line in result.trace if trace else []:
        print(line)
    history = result.history
    print(
        f"seed {result.seed}: {len(history.accepted)} jobs, {len(history.starts)} starts, "
        f"{len(history.faults)} faults, {result.calls} calls, {result.seconds:.0f} s of its own time"
    )
    for wrong in result.wrong:
        print(f"  {wrong}")
    return int(bool(result.wrong))


def _many(stage: Stage, given: argparse.Namespace) -> int:
    began = told = time.monotonic()
    until = began + given.seconds if given.seconds else float("inf")
    ran = failed = jobs = starts = faults = 0
    seed = given.first
    while time.monotonic() < until if given.seconds else ran < given.seeds:
        result = stage.run(seed)
        ran, seed = ran + 1, seed + 1
        jobs += len(result.history.accepted)
        starts += len(result.history.starts)
        faults += len(result.history.faults)
        if result.wrong:
            failed += 1
            print(f"seed {result.seed} fails: python -m tests.simulation {result.seed} --trace", flush=True)
            for wrong in result.wrong[:3]:
                print(f"  {wrong}", flush=True)
            if not given.keep_going:
                break
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{ran} seeds, {failed} failed, {ran / (told - began):.1f} a second", file=sys.stderr)
    figures = {
        "seeds": ran,
        "failed": failed,
        "jobs": jobs,
        "starts": starts,
        "faults": faults,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(figures) if given.json else ", ".join(f"{n} {name}" for name, n in figures.items()))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
