"""Runs the state machine a number of times against one server."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.stateful.bench import Bench, Wire
from tests.integration.stateful.rules import QueueMachine

#: Sequences of steps.
EXAMPLES = int(os.environ.get("STREAMWORKER_STATEFUL_EXAMPLES", "200"))
#: Other sequences each time, instead of always the same.
RANDOM = os.environ.get("STREAMWORKER_STATEFUL_SEED") == "random"
#: Rules in one of them; many a rule is several steps of the protocol.
STEPS = 30


def run_examples(
    wire: Wire, *, folder: Path | None = None, shrink: bool = True, told: Counter[str] | None = None
) -> tuple[int, BaseException | None]:
    """How many sequences ran, and the failure that ended them; `folder`, `told`: see `Bench`."""
    ran = 0

    class OnThisServer(QueueMachine):
        def make_bench(self) -> Bench:
            nonlocal ran
            ran += 1
            return Bench(wire, f"example{ran}", folder=folder, told=told)

    options = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=not RANDOM,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(OnThisServer, settings=options)
    except Exception as error:  # whatever the machine found; the caller raises or counts it
        return ran, error
    return ran, None
