"""Enters an app's lifespan so that a stop can end it: an app that waits for something may wait for ever."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any


class Stopped(Exception):
    """The worker was told to stop before its app had started."""


class Starting:
    """One start."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._ended = False

    def end(self) -> None:
        """Give the start up, if it is under way; or before it begins. Without effect once it is over."""
        if not self._ended:
            self._ended = True
            if self._task is not None:
                self._task.cancel()

    async def enter(self, stack: AsyncExitStack, lifespan: AbstractAsyncContextManager[Any]) -> Any:
        """What the lifespan yields; it is left with the stack. Raises Stopped."""
        if self._given_up():
            raise Stopped
        task = self._task = asyncio.current_task()
        assert task is not None
        # In this very task: what a lifespan opens has to be closed by the task that opened it.
        try:
            state = await stack.enter_async_context(lifespan)
        except asyncio.CancelledError:
            if not self._given_up() or task.uncancel():
                raise
            raise Stopped from None
        if self._given_up() and not task.uncancel():
            raise Stopped
        self._task, self._ended = None, True
        return state

    def _given_up(self) -> bool:
        return self._ended
