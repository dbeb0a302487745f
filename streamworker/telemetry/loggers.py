"""Keeps the app's logging from failing those who write lines.

`logging` leaves what a handler cannot write to the handler, and a filter's errors to nobody. Not all handlers
see to it. A line that cannot be written must not end a worker, break a connection, or leave a job unsettled.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable

#: All loggers of this package.
NAMES = (
    "streamworker",
    "streamworker.companion",
    "streamworker.job",
    "streamworker.mirror",
    "streamworker.outbox",
    "streamworker.postgres",
    "streamworker.supervisor",
    "streamworker.telemetry",
    "streamworker.testing",
    "streamworker.transitions",
    "streamworker.worker",
)


def shield() -> None:
    """From now on none of our loggers raises: what its handlers and filters raise is said once, on stderr."""
    for logger in map(logging.getLogger, NAMES):
        if not isinstance(logger.handle, _Shielded):
            logger.handle = _Shielded(logger.handle)  # type: ignore[method-assign]


class _Shielded:
    """Stands in for the `handle` of a logger."""

    def __init__(self, handle: Callable[[logging.LogRecord], None]) -> None:
        self._handle = handle

    def __call__(self, record: logging.LogRecord) -> None:
        try:
            self._handle(record)
        except Exception as error:
            _say(record.name, error)


#: Kinds of errors that were said of.
_said: set[type[Exception]] = set()


def _say(name: str, error: Exception) -> None:
    if type(error) in _said or not logging.raiseExceptions or sys.stderr is None:
        return
    _said.add(type(error))
    try:
        sys.stderr.write(f"lines of the logger {name} cannot be written:\n")
        traceback.print_exception(error, file=sys.stderr)
    except Exception:  # nobody reads it
        return
