"""The fleet agrees with itself: one app, one version, one lease, and nobody keeps dying."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from streamworker.core import durations
from streamworker.ops.checks import Finding, ok, warning


def agreement(alive: Sequence[Mapping[str, Any]], lease_ms: int) -> list[Finding]:
    """All workers run the same app in the same version, and judge each other by the same lease.

    `lease_ms` is what this command was given; a worker of before leases were told has None.
    """
    found = []
    apps = Counter(str(worker["app"]) for worker in alive if worker["app"])
    if len(apps) > 1:
        shown = ", ".join(f"{count} of {app}" for app, count in sorted(apps.items()))
        found.append(
            warning(
                "fleet",
                f"workers of different apps share this namespace: {shown}",
                "each hands back the jobs of the others, which end after an hour if nobody takes them: give "
                "each app a namespace of its own; is STREAMWORKER_NAMESPACE set for both?",
            )
        )
    versions = Counter(str(worker["version"]) for worker in alive if worker["version"])
    if len(versions) > 1:
        shown = ", ".join(f"{count} run {version}" for version, count in sorted(versions.items()))
        found.append(
            warning("fleet", f"workers of different versions: {shown}", "finish the rollout, or roll it back")
        )
    leases = Counter(worker["lease_ms"] for worker in alive if worker["lease_ms"])
    if len(leases) > 1:
        shown = ", ".join(
            f"{count} have {durations.format_ms(lease)}" for lease, count in sorted(leases.items())
        )
        found.append(
            warning(
                "fleet",
                f"workers with different leases: {shown}",
                "the shortest takes over what the others still run: set STREAMWORKER_LEASE to one value",
            )
        )
    elif leases and lease_ms not in leases:
        (theirs,) = leases
        found.append(
            warning(
                "fleet",
                f"the workers' lease is {durations.format_ms(theirs)}, here it is "
                f"{durations.format_ms(lease_ms)}",
                "set STREAMWORKER_LEASE here too, or this command judges by another time",
            )
        )
    return found or [ok("fleet", "app, version and lease agree")]


def deaths(stats: Mapping[str, int]) -> Finding:
    """How many jobs were taken over from workers that died, since the counters began."""
    recovered = Counter[str]()
    for name, count in stats.items():
        kind, _, rest = name.partition(":")
        if kind == "recovered":
            recovered[rest.partition(":")[2]] += count
    total = recovered.total()
    if not total:
        return ok("deaths", "no job was ever taken over from a dead worker")
    worst = ", ".join(f"{count} of task {task}" for task, count in recovered.most_common(3))
    return ok("deaths", f"{total} jobs were taken over from dead workers since the counters began: {worst}")
