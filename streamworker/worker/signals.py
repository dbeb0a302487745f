"""Which signals a worker process hears, what it makes of them, and that its forks do not."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from streamworker.worker.worker import Worker

log = logging.getLogger("streamworker.worker")

#: Seconds that an end at once may take, the end of the app's lifespan included; then we leave without it.
AT_ONCE_SECONDS = 20.0
#: Heard by workers; a fork has the interpreter's own way with them again.
_HEARD = tuple(
    number
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    if (number := getattr(signal, name, None)) is not None
)
#: Of the thread that forks: the signals that it had blocked before.
_mask = threading.local()


def listen(worker: Worker, *, supervised: bool) -> Callable[[], None]:
    """Hear signals from now on; in the main thread, in the loop of the worker. Returns what sees to it.

    SIGTERM and SIGINT end it gracefully, and at once when they come twice; SIGQUIT at once. SIGHUP, of a
    terminal that closes, ends it gracefully however often it comes, unless `nohup` has it ignored.

    With a supervisor SIGTERM is always for a graceful end, and SIGINT for one at once: systemd sends SIGTERM
    to every process of a unit, and the supervisor, which hears it as well, passes it on.
    """
    loop = asyncio.get_running_loop()

    def gracefully() -> None:
        if not worker.stopping:
            worker.stop()

    def again() -> None:
        if worker.stopping:
            loop.call_later(AT_ONCE_SECONDS, _leave, worker.id)
        worker.stop()

    def at_once() -> None:
        gracefully()
        again()

    heard = {
        signal.SIGTERM: gracefully if supervised else again,
        signal.SIGINT: again,
        signal.SIGQUIT: at_once,
    }
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heard[signal.SIGHUP] = gracefully
    for number, then in heard.items():
        loop.add_signal_handler(number, then)
    let_forks_be()
    told = signal.set_wakeup_fd(-1)  # there is no other way to ask where the interpreter tells the loop
    signal.set_wakeup_fd(told)

    def see_to_it() -> None:
        with suppress(ValueError, OSError):
            if signal.set_wakeup_fd(told) != told:
                log.warning("worker %s: a handler had all signals set aside; they are heard again", worker.id)
        # A function in place of ours does no harm: the loop is told all the same.
        for number, then in heard.items():
            if signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN):
                log.warning(
                    "worker %s: a handler had %s set aside; it is heard again", worker.id, number.name
                )
                loop.add_signal_handler(number, then)

    return see_to_it


def _leave(worker: str) -> None:
    log.error("worker %s: did not end within %g s of the second signal; leaving", worker, AT_ONCE_SECONDS)
    with suppress(Exception):
        logging.shutdown()
    os._exit(1)


def leave_with(code: int) -> None:
    """From now on Ctrl-C and SIGTERM end the process at once and quietly, with this code.

    For the main thread, once a worker and the loop that heard them have ended and nothing is left to be done.
    """

    def leave(number: int, frame: object) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # nobody reads it, or it is none
                stream.flush()
        os._exit(code)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)


@cache
def let_forks_be() -> None:
    """What a handler forks, as multiprocessing does, is ended by a signal as it would be elsewhere.

    A fork inherits our handlers, and the pipe through which they reach our loop: `Process.terminate()` would
    not end the child but stop this worker.
    """
    os.register_at_fork(before=_hold, after_in_parent=_let_through, after_in_child=_forget)


def _hold() -> None:
    """What comes while a child has our handlers still has to wait until it has its own."""
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _forget() -> None:
    with suppress(ValueError):
        signal.set_wakeup_fd(-1)
    for number in _HEARD:
        if signal.getsignal(number) is not signal.SIG_IGN:
            default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            with suppress(ValueError):
                signal.signal(number, default)
    _let_through()
