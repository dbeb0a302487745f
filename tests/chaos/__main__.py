"""`make chaos`: many jobs over all faults, and the figures. `python -m tests.chaos --help`."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from types import FrameType
from typing import NoReturn

from tests.chaos.bench import Bench
from tests.chaos.campaign import Campaign, lines
from tests.chaos.checker import report
from tests.chaos.plan import FULL, Plan
from tests.servers import KINDS


def main() -> int:
    """Run a campaign; 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=FULL, help="how many (default %(default)s)")
    parser.add_argument(
        "--rate", type=float, default=300.0, help="jobs a second at most (default %(default)s)"
    )
    parser.add_argument("--server", choices=KINDS, default="valkey", help="default %(default)s")
    parser.add_argument("--lease", type=float, default=2.0, help="seconds (default %(default)s)")
    parser.add_argument("--workers", type=int, default=3, help="processes (default %(default)s)")
    parser.add_argument("--concurrency", type=int, default=16, help="slots of each (default %(default)s)")
    parser.add_argument(
        "--margin", type=float, default=2.0, help="seconds beyond D6's bound (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the plan; by default a new one")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)  # unwinds, so that no process is left behind
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    plan = Plan.of(options.jobs, seed)
    _tell(
        f"{plan.jobs} jobs, {len(plan.blows)} faults, {options.workers} workers with {options.concurrency} "
        f"slots, lease {options.lease:g} s, {options.server} with AOF always, seed {seed}"
    )
    with Bench(
        kind=options.server,
        lease=options.lease,
        workers=options.workers,
        concurrency=options.concurrency,
        margin=options.margin,
    ) as bench:
        campaign = Campaign(bench, plan, rate=options.rate, seed=seed, tell=_tell)
        account = campaign.run()
    if account.violations:
        _tell(report(account.violations))
    for problem in account.problems:
        _tell(problem)
    if options.json:
        sys.stdout.write(json.dumps({"seed": seed, "server": options.server, **account.as_json()}) + "\n")
    else:
        sys.stdout.write("\n".join(lines(account)) + "\n")
    return 0 if account.clean else 1


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
