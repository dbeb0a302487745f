"""Being process 1 of a container: orphans become our children, and signals have no default (R47)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("streamworker.worker")

#: Seconds between two looks for the dead.
LOOK_EVERY = 5.0
#: Seconds that a dead child may wait for whoever started it. A handler's own subprocess is a child as well,
#: and taking its exit code away would make its failure look like success.
UNCLAIMED_AFTER = 30.0
#: Shells that keep signals to themselves.
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "busybox"})


def shell_above(proc: Path = Path("/proc")) -> str | None:
    """The name of the shell at process 1 that is our parent; None when there is no such thing."""
    if os.getppid() != 1:
        return None
    try:
        name = (proc / "1" / "comm").read_text().strip()
    except OSError:
        return None
    return name if name in SHELLS else None


def warn_of_shell() -> None:
    """Say so when SIGTERM will not reach us."""
    shell = shell_above()
    if shell is not None:
        log.warning(
            "the parent of this process is %s at process 1, which does not pass SIGTERM on: a stop will "
            "kill the worker and what it runs. Use the exec form, or `exec streamworker run …`",
            shell,
        )


def dead_children(proc: Path = Path("/proc")) -> set[tuple[int, str]]:
    """Children of this process that nobody has waited for: pid and time of birth."""
    me = str(os.getpid())
    found = set()
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # gone meanwhile
            continue
        words = stat.rpartition(")")[2].split()  # the name in front may hold anything
        if words[0] == "Z" and words[1] == me:
            found.add((int(entry.name), words[19]))
    return found


class Reaper:
    """Reaps orphans that ended, from a thread."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streamworker-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY):
            self.look(lambda pid: os.waitpid(pid, os.WNOHANG))

    def look(self, reap: Callable[[int], object]) -> None:
        """One look; those that were dead for long enough are reaped."""
        try:
            dead = dead_children()
        except OSError:
            return
        looks = max(1, round(UNCLAIMED_AFTER / LOOK_EVERY))
        self._seen = {child: self._seen.get(child, 0) + 1 for child in dead}
        for child, times in self._seen.items():
            if times > looks:
                try:
                    reap(child[0])
                except OSError:  # somebody waited for it after all
                    continue
