"""Reading processor time."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def of_process(pid: int) -> float:
    """User and system seconds that all threads of a process have used."""
    try:
        # Linux makes the id of a process's CPU clock from its pid (clock_getcpuclockid): nanoseconds, where
        # /proc has ticks of 10 ms.
        return time.clock_gettime((~pid << 3) | 2)
    except (OSError, OverflowError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK


def of_machine() -> float | None:
    """Seconds that all processors were busy or taken away by the host; None where nobody counts them."""
    try:
        with open("/proc/stat") as stat:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / _TICK
