"""How many processors this process may use: a container's limit and affinity, not what the machine has."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

#: Where the control groups are, and which of them is ours.
GROUPS, OURS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable(groups: Path = GROUPS, ours: Path = OURS) -> int:
    """At least 1. A limit of 1.5 processors counts as 2."""
    try:
        there = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on macOS
        there = os.cpu_count() or 1
    return max(1, min([there, *(math.ceil(limit) for limit in _limits(groups, ours))]))


def _limits(groups: Path, ours: Path) -> Iterator[float]:
    """The limits of our control group and of those above it, in processors; version 2, and 1."""
    for folder in _folders(groups, ours):
        try:
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if int(quota) > 0 and int(period) > 0:
                yield int(quota) / int(period)
        except (OSError, ValueError):  # there is none, or it says `max` or -1
            continue


def _folders(groups: Path, ours: Path) -> Iterator[Path]:
    try:
        lines = ours.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for root in (groups / controllers, groups / "cpu") if controllers else (groups,):
            parts = Path(place.lstrip("/")).parts
            # Within a container the place may be one of the machine's, and its own group is the root.
            for depth in range(len(parts), -1, -1):
                yield root.joinpath(*parts[:depth])
