"""Forks that come back into the worker, since a handler called `os.fork` and ended neither side.

Such a one would go on as a second worker of the same name, on the same sockets, and take the replies for the
first. It ends as soon as it comes back. What multiprocessing forks never does.
"""

from __future__ import annotations

import asyncio
import os
import threading
from functools import cache
from typing import NoReturn

_home: tuple[asyncio.AbstractEventLoop, int] | None = None


def leave_from(loop: asyncio.AbstractEventLoop) -> None:
    """A fork that comes back to this loop ends. Called in its thread; the last loop of a process counts."""
    global _home  # noqa: PLW0603 - there is one way in which a process forks
    _home = (loop, threading.get_ident())
    _register()


@cache
def _register() -> None:
    os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    if _home is None or _home[1] != threading.get_ident():
        return
    loop = _home[0]
    ready = getattr(loop, "_ready", None)
    if ready is None:
        loop.call_soon(leave)
    else:  # before anything that reads from what is the parent's
        ready.appendleft(asyncio.Handle(leave, (), loop))


def leave() -> NoReturn:
    """End this process at once, as the child of another that it is."""
    os.write(2, b"streamworker: a handler forked, and its fork came back to the worker; the fork ends here\n")
    os._exit(1)
