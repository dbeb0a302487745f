"""An event loop whose time passes only while nothing is to be done, with hosts in it that freeze and die.

A host is a simulated process. What it schedules carries it along in a context variable: while the host is
frozen that waits, and once the host is dead it never runs, as after SIGSTOP and SIGKILL. No `finally` of a
dead host is reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

#: Turns of one simulation at most; an ordinary one takes ten thousand.
MOST_TURNS = 300_000


class Stuck(Exception):
    """Everybody waits and nothing is scheduled that could wake anybody, or somebody never comes to an end."""


class Host:
    """One simulated process."""

    def __init__(self, name: str, *, died: Callable[[Host], None] = lambda _: None) -> None:
        """`died` is told at its death."""
        self.name = name
        self.died = died
        self.alive = True
        self.frozen = False
        self.parked: list[Step] = []
        #: Everything it runs, so that the end of a simulation can take it apart.
        self.tasks: set[asyncio.Task[Any]] = set()
        self.children: list[Host] = []

    def freeze(self) -> None:
        """Stop where it stands: SIGSTOP."""
        self.frozen = True

    def thaw(self) -> None:
        """Go on, with all that has come due meanwhile: SIGCONT."""
        self.frozen = False
        parked, self.parked = self.parked, []
        for step in parked:
            step.again()

    def kill(self) -> None:
        """End it here and now, and its children with it: SIGKILL."""
        if self.alive:
            self.alive = False
            self.frozen = False
            self.parked.clear()
            for child in self.children:
                child.kill()
            self.died(self)

    def end(self) -> None:
        """Close whatever it was about to do, once the simulation is over."""
        inside(self).run(self._close)
        for child in self.children:
            child.end()

    def _close(self) -> None:
        while self.tasks:  # a handler that is closed may make its runner begin something
            task = self.tasks.pop()
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # not resumed, on purpose
            with contextlib.suppress(RuntimeError):  # a coroutine that would await in its `finally`
                task.get_coro().close()


#: The host that is running; None: the world around them, which never freezes.
HOST: ContextVar[Host | None] = ContextVar("host", default=None)


class Step:
    """A callback of a host."""

    __slots__ = ("args", "callback", "context", "handle", "host", "loop")

    def __init__(
        self,
        loop: VirtualLoop,
        host: Host,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context,
    ) -> None:
        self.loop = loop
        self.host = host
        self.callback = callback
        self.args = args
        self.context = context
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        if self.handle is not None and self.handle.cancelled():  # while it was parked
            return
        if self.host.frozen:
            self.host.parked.append(self)
        elif self.host.alive:
            self.callback(*self.args)

    def again(self) -> None:
        self.loop.call_step(self)


class _Selector(selectors.SelectSelector):
    """Never waits: it moves the clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is scheduled any more")
        self._turns += 1
        if self._turns > MOST_TURNS:
            raise Stuck(f"no end after {MOST_TURNS} turns")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs the same way each time: one thread, no sockets, and a clock that jumps to the next due time."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self.set_task_factory(_task)
        #: What a callback or an abandoned task raised: no part of a run may.
        self.problems: list[str] = []
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._virtual.now

    def _note(self, loop: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
        error = facts.get("exception")
        if (
            error is not None or "was destroyed" not in facts["message"]
        ):  # those of dead hosts are, on purpose
            self.problems.append(f"{facts['message']}: {error!r}")

    def call_soon(  # type: ignore[override]  # the types of the arguments are the callback's affair
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        step = self._step(callback, args, context)
        if step is None:
            return super().call_soon(callback, *args, context=context)
        step.handle = super().call_soon(step, context=step.context)
        return step.handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        step = self._step(callback, args, context)
        if step is None:
            return super().call_at(when, callback, *args, context=context)
        handle = super().call_at(when, step, context=step.context)
        step.handle = handle
        return handle

    def call_step(self, step: Step) -> None:
        """Run a step that was parked; its own handle still says whether it was cancelled."""
        super().call_soon(step, context=step.context)

    def _step(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None
    ) -> Step | None:
        host = HOST.get() if context is None else context.get(HOST)
        if host is None:
            return None
        return Step(self, host, callback, args, copy_context() if context is None else context)


def _task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    context = options.get("context")
    host = HOST.get() if context is None else context.get(HOST)
    if host is not None:
        host.tasks.add(task)
        task.add_done_callback(host.tasks.discard)
    return task


def outside() -> Context:
    """The context of the world around the hosts."""
    context = copy_context()
    context.run(HOST.set, None)
    return context


def inside(host: Host) -> Context:
    """The context of a host."""
    context = copy_context()
    context.run(HOST.set, host)
    return context
