"""What ends a command that serves until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

#: Seconds that such a process may take to end once the worker that it belongs to is gone.
ORPHAN_PATIENCE = 15.0


def stop_when_told(stop: Callable[[], None]) -> None:
    """Call `stop` in the running loop on SIGTERM or Ctrl-C, or when the worker is gone that started us."""
    from streamworker.worker.leash import Leash

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)

    def orphaned() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it is ending anyway
            loop.call_soon_threadsafe(stop)

    if (leash := Leash.inherited()) is not None:  # beside a worker: not without it
        leash.hold(orphaned, patience=ORPHAN_PATIENCE)
