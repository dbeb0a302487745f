"""Explores the model of the core protocol: `python -m tests.model.protocol loss+crash`.

Without a configuration: the whole catalogue, as `make soak` does; that takes hours. With `--off RULE`: leaves
this rule out, by default where that shows. Ends with 1 if anything is violated.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.model.protocol.explore import Exploration, Violation
from tests.model.protocol.faults import Config, catalogue, config_of
from tests.model.protocol.rules import RULES, without
from tests.model.protocol.shown import SHOWN
from tests.model.protocol.stepping import World
from tests.model.protocol.telling import lines, picture
from tests.model.protocol.walking import EVERYTHING, walk

#: Steps of a random walk before it goes on without faults.
WALK = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model.protocol", description=__doc__)
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="faults and traits: loss, loss+crash, …")
    parser.add_argument(
        "--off", action="append", default=[], metavar="RULE", help="explore without this rule"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="states of one configuration at most")
    parser.add_argument(
        "--walks", type=int, metavar="N", help="walk at random instead, so often, with all faults"
    )
    parser.add_argument("--part", metavar="I/N", help="every Nth configuration only, for N processes")
    parser.add_argument("--seconds", type=float, metavar="S", help="begin no configuration after so long")
    parser.add_argument("--list", action="store_true", help="show rules and configurations")
    chosen = parser.parse_args()
    if chosen.list:
        for name, (number, text) in RULES.items():
            print(f"{name:14} {number:4} {text}")
        print("\n" + " ".join(catalogue()))
        return 0
    for name in chosen.off:
        if name not in RULES:
            parser.error(f"no rule {name!r}: see --list")
    try:
        configs = [config_of(name) for name in chosen.configs]
    except ValueError as error:
        parser.error(str(error))
    if chosen.walks is not None:
        return walk_all(configs or [config_of(EVERYTHING)], chosen.off, chosen.walks)
    if not configs:
        shown = [SHOWN[name].config for name in chosen.off if name in SHOWN]
        configs = shown or [config_of(name) for name in catalogue()]
    if chosen.part is not None:
        part, _, parts = chosen.part.partition("/")
        configs = configs[int(part) - 1 :: int(parts)]
    return explore_all(configs, chosen.off, chosen.limit, chosen.seconds)


def explore_all(configs: list[Config], off: list[str], limit: int | None, seconds: float | None) -> int:
    """1 if anything is violated, else 0."""
    began = time.monotonic()
    states = violated = explored = 0
    for config in configs:
        if seconds is not None and time.monotonic() - began > seconds:
            break
        explored += 1
        result = Exploration(config, without(*off), tell=_tell).run(limit)
        states += result.states
        end = "complete" if result.complete else "limit reached" if result.violation is None else "violated"
        rate = result.steps / max(result.seconds, 0.001)
        print(
            f"{config.name}: {result.states:,} states, {result.steps:,} steps, depth {result.depth}, {end},"
            f" {result.seconds:.1f} s, {rate:,.0f} steps/s",
            flush=True,
        )
        if result.violation is not None:
            violated += 1
            _show(result.violation)
    print(f"{explored} of {len(configs)} configurations, {states:,} states, {violated} violated")
    return int(violated > 0)


def walk_all(configs: list[Config], off: list[str], walks: int) -> int:
    """1 if a walk goes wrong, which names its seed, else 0."""
    for config in configs:
        world = World(config, without(*off))
        for number in range(walks):
            violation = walk(world, f"{config.name} {number}", WALK)
            if violation is not None:
                print(f"walk {number} of {config.name}")
                _show(violation)
                return 1
        print(f"{config.name}: {walks:,} walks of {WALK} steps", flush=True)
    return 0


def _show(violation: Violation) -> None:
    print(f"  VIOLATED: {violation.what}")
    for line in (*lines(violation.trace), "", *picture(violation.state)):
        print(f"    {line}")


def _tell(progress: str) -> None:
    print(f"  … {progress}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
