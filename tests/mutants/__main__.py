"""Break one guard of the scripts after the other, and see who notices.

    python -m tests.mutants                           the test that the list names for each
    python -m tests.mutants --by simulation           histories, until one fails
    python -m tests.mutants --by sequences            the stateful test
    python -m tests.mutants recover                   only those with `recover` in their name

The list is `tests/lua/guards*.py`. Ends with status 1 when fewer than nine of ten are
noticed, or one goes unnoticed that the list does not explain.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.lua.mutating import SCRIPTS, Mutation
from tests.lua.test_mutations import MUTATIONS
from tests.mutants.hunters import Histories, Hunter, NamedTest, Sequences

#: The part of the mutants that must be noticed.
ENOUGH = 0.9


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="a part of the names of those to try")
    parser.add_argument("--by", choices=("tests", "sequences", "simulation"), default="tests")
    parser.add_argument("--seeds", type=int, default=100, help="histories for each, with --by simulation")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args()
    wanted = [mutation for mutation in MUTATIONS if given.name in mutation.name]
    if not wanted:
        parser.error(f"no mutant has {given.name!r} in its name")
    hunters: dict[str, Hunter] = {
        "tests": NamedTest(),
        "sequences": Sequences(),
        "simulation": Histories(given.seeds),
    }
    with hunters[given.by] as hunter:
        rows = [_try(hunter, mutation, quiet=given.json) for mutation in wanted]
    return _report(rows, strict=given.by == "tests", as_json=given.json)


Row = dict[str, str | float | None]


def _try(hunter: Hunter, mutation: Mutation, *, quiet: bool) -> Row:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "lua")
        shutil.copytree(SCRIPTS, folder)
        mutation.apply(folder)
        by = hunter.hunt(mutation, folder)
    seconds = round(time.monotonic() - began, 2)
    if not quiet:
        print(f"{mutation.name:72} {seconds:7.2f} s  {by or 'SURVIVED'}", flush=True)
    return {"mutant": mutation.name, "by": by, "seconds": seconds, "explained": mutation.harmless}


def _report(rows: list[Row], *, strict: bool, as_json: bool) -> int:
    survivors = [row for row in rows if row["by"] is None]
    killed = len(rows) - len(survivors)
    unexplained = [row for row in survivors if not row["explained"]]
    figures = {
        "mutants": len(rows),
        "killed": killed,
        "part": round(killed / len(rows), 3),
        "seconds": round(sum(float(row["seconds"] or 0) for row in rows), 1),
    }
    if as_json:
        print(json.dumps({**figures, "rows": rows}, indent=1))
    else:
        for row in survivors:
            print(f"survived: {row['mutant']}: {row['explained'] or 'nobody knows why'}")
        print(f"{killed} of {len(rows)} killed ({figures['part']:.1%}) in {figures['seconds']} s")
    return int(strict and (killed < ENOUGH * len(rows) or bool(unexplained)))


if __name__ == "__main__":
    sys.exit(main())
