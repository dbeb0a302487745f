"""What Python itself would write to stderr becomes lines of the log: errors that reach nobody, and warnings.

Their texts quote payloads and addresses. A thread of a handler's that dies would write them as they are: over
many lines in a log whose lines are JSON, with passwords, and with escape sequences to whoever looks.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

log = logging.getLogger("streamworker")


def catch() -> None:
    """Log them from now on; what the app has set up for them stays."""
    logging.captureWarnings(True)
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _of_thread
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _unraisable


def _of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit or args.exc_value is None:  # a thread may end by it
        return
    name = "?" if args.thread is None else args.thread.name
    log.error("the thread %s raised", name, exc_info=args.exc_value)


def _unraisable(args: UnraisableHookArgs) -> None:
    try:
        place = repr(args.object)[:200]
    except Exception:
        place = f"a {type(args.object).__name__}"
    log.error("%s %s", args.err_msg or "an error is ignored in", place, exc_info=args.exc_value)
