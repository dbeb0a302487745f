"""Kills this process at one point around a call. Installed by the tests, in the process that is to die.

All calls of a process go through `Link.send`, but the pump's through `Link.post` and the heartbeat's through
`SyncLink.call`: all are replaced here, and production knows nothing of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, NoReturn

from streamworker.store import lua
from streamworker.store.connection import Argument, Link, SyncLink, Told
from tests.crash_points.points import Point, Step

#: What an exchange is for, by the first letter of its first row.
_EXCHANGES = {"S": "settle", "R": "settle", "F": "settle", "M": "mark", "L": "release"}


def die() -> NoReturn:
    """SIGKILL: no `finally`, no good-bye."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("this process is dead")


def name_of(arguments: tuple[Argument, ...], names: dict[str, str]) -> str:
    """What a call is called; `names` are those of the scripts by digest."""
    if arguments[0] != "EVALSHA":
        return str(arguments[0]).lower()
    name = names.get(str(arguments[1]), "unknown")
    if name != "exchange":
        return name
    rows = arguments[4 + len(lua.load(name).bindings) :]
    return f"exchange {_EXCHANGES[str(rows[0])[0]] if rows else 'claim'}"


class Seam:
    """Counts the calls of one name, and ends the process in the right one."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._left = point.nth
        self._names = {lua.load(name).sha: name for name in lua.names()}

    def due(self, arguments: tuple[Argument, ...]) -> Step | None:
        """Where in this call the process is to die; None: not in this one."""
        if name_of(arguments, self._names) != self._point.call:
            return None
        self._left -= 1
        return self._point.step if self._left == 0 else None


class _Deaf:
    """Stands for the reader of replies: the command is written when it is asked for one."""

    def gets(self) -> NoReturn:
        die()


def install(point: Point) -> None:
    """Arm this process."""
    seam = Seam(point)
    send, post, call = Link.send, Link.post, SyncLink.call

    def armed_send(self: Link, *arguments: Argument) -> asyncio.Future[Any]:
        step = seam.due(arguments)
        if step is Step.BEFORE:
            die()
        reply = send(self, *arguments)
        if step is Step.SENT:
            die()
        if step is Step.ANSWERED:
            reply.add_done_callback(lambda _: die())
        return reply

    def armed_post(self: Link, told: Told, *arguments: Argument) -> None:
        step = seam.due(arguments)
        if step is Step.BEFORE:
            die()
        post(self, (lambda _: die()) if step is Step.ANSWERED else told, *arguments)
        if step is Step.SENT:
            die()

    def armed_call(self: SyncLink, *arguments: Argument) -> Any:
        step = seam.due(arguments)
        if step is Step.BEFORE:
            die()
        if step is Step.SENT:
            call(self, "PING")  # connected from here on
            self._reader = _Deaf()  # type: ignore[assignment]
        reply = call(self, *arguments)
        if step is Step.ANSWERED:
            die()
        return reply

    Link.send = armed_send  # type: ignore[method-assign]
    Link.post = armed_post  # type: ignore[method-assign]
    SyncLink.call = armed_call  # type: ignore[method-assign]
