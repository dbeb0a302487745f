"""The command line: `python -m benchmarks`, or `make bench ARGS="..."`."""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import sys
import time
from pathlib import Path

from benchmarks import catalogue, report, scenarios
from benchmarks.environments import Environment, Unavailable, cache_folder
from benchmarks.processors import machine
from benchmarks.report import Record, Results
from benchmarks.roles import Failed
from benchmarks.scenarios import SCENARIOS, Bench, Setting, concerns
from benchmarks.server import Aof, Kind, Server, default_kind

#: Runnable processes on average beyond which figures are about the neighbours as well.
BUSY = 0.7

EXAMPLES = """\
  make bench                                            everything, about ten minutes
  make bench ARGS="streamworker --only throughput"
  make bench ARGS="streamworker bullmq_node --only throughput --slots 1 256 --long --repeat 5"
  make bench ARGS="streamworker --only depth --depths 100000 1000000 --slots 256"
  make bench ARGS="streamworker --aof everysec --server valkey"
  make bench ARGS="streamworker --only profile"
  make bench ARGS="streamworker@mirror procrastinate pgqueuer oban --only durable --aof everysec --long"
  make bench ARGS="--show benchmarks/results/DATE.json"
"""


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure streamworker and other Redis job queues by the same work.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "contenders",
        nargs="*",
        metavar="contender",
        choices=[[], *catalogue.CONTENDERS],
        help=f"of {', '.join(catalogue.CONTENDERS)}; by default one setting of each",
    )
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=scenarios.USUAL, help="scenarios")
    parser.add_argument("--long", action="store_true", help="the long form, for figures to publish")
    parser.add_argument("--repeat", type=int, default=1, help="how often; tables show the run in the middle")
    parser.add_argument("--server", type=Kind, choices=list(Kind), help="by default redis-server on the PATH")
    parser.add_argument("--aof", type=Aof, choices=list(Aof), default=Aof.OFF)
    parser.add_argument("--jobs", type=int, help="jobs of a throughput run, a tenth with one slot")
    parser.add_argument("--slots", type=int, nargs="+", help="concurrency of the worker")
    parser.add_argument("--depths", type=int, nargs="+", help="jobs queued, for depth")
    parser.add_argument("--deadline", type=float, help="seconds of a throughput or depth run at the most")
    parser.add_argument("--output", type=Path, help="results file; what is in it stays")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="where packages are installed")
    parser.add_argument("--show", type=Path, metavar="FILE", help="only print the tables of a results file")
    return parser.parse_args(words)


def main() -> int:
    options = parse()
    if options.show:
        print(report.tables(report.read(options.show)))
        return 0
    effort = catalogue.LONG if options.long else catalogue.SHORT
    setting = Setting(
        kind=options.server or default_kind(),
        aof=options.aof,
        effort=scenarios.with_depths(effort, options.depths, options.deadline),
        jobs=options.jobs,
        slots=None if options.slots is None else tuple(options.slots),
    )
    try:
        with Server(setting.kind, setting.aof, None) as server:
            version = server.version()
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    now = datetime.datetime.now(datetime.UTC)
    output = options.output or Path(__file__).parent / "results" / f"{now.date().isoformat()}.json"
    results = Results(output, machine())
    records: list[Record] = []
    troubles: list[str] = []
    benches: list[Bench] = []
    for label in dict.fromkeys(options.contenders or catalogue.USUAL):
        try:
            benches.append(Bench(Environment.of(catalogue.CONTENDERS[label], options.cache), setting))
        except Unavailable as error:
            troubles.append(f"{label} is left out: {error}")
    # Round by round, so that a noisy minute does not hit one contender alone.
    for _, name, bench in itertools.product(range(options.repeat), options.only, benches):
        if not concerns(name, bench.contender):
            continue
        try:
            for record in _run(bench, name, version):
                records.append(record)
                results.add(record)
        except Failed as error:
            troubles.append(f"{bench.contender.label}, {name}: {error}")
    print(report.tables(records))
    for trouble in dict.fromkeys(troubles):
        print(f"\n{trouble}", file=sys.stderr)
    print(f"\n{version}, AOF {setting.aof}; written to {output}")
    return 1 if not records else 0


def _run(bench: Bench, name: str, version: str) -> list[Record]:
    load = os.getloadavg()[0]
    contender = bench.contender
    if load > BUSY:
        print(f"the machine is busy (load {load:.1f}): trust CPU per job before jobs/s", file=sys.stderr)
    began = time.perf_counter()
    records = [
        Record(
            contender=contender.label,
            scenario=name,
            server=version,
            aof=bench.setting.aof,
            at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            load=load,
            versions=bench.environment.versions(),
            keeps=contender.keeps,
            figures=figures,
        )
        for figures in SCENARIOS[name](bench)
    ]
    for record in records:
        if repeats := record.figures.get("repeats"):
            print(f"{contender.label}: {repeats} of {record.figures['jobs']} were repeats", file=sys.stderr)
    seconds = time.perf_counter() - began
    print(f"{contender.label} {name}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return records


if __name__ == "__main__":
    sys.exit(main())
