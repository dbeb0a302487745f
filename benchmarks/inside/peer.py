"""What an adapter offers: a client that puts jobs in and a worker that runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.inside.tally import Watcher

Args = Mapping[str, Any]


class Peer(ABC):
    """A job queue with one task, whose one argument is a JSON object and which does nothing."""

    def __init__(self, variant: str) -> None:
        self.variant = variant

    async def prepare(self, url: str) -> None:  # noqa: B027 - most need nothing
        """Make what must be there before anything else, such as tables."""

    @abstractmethod
    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        """Run a worker until killed. The task calls `watcher.ran(args)` and returns None."""


class AsyncPeer(Peer):
    """Its client is used within an event loop; 64 producers are tasks."""

    @abstractmethod
    async def connect(self, url: str) -> None: ...

    @abstractmethod
    async def disconnect(self) -> None: ...

    @abstractmethod
    async def put(self, args: Args) -> None: ...

    async def put_many(self, many: Sequence[Args]) -> None:
        raise NotImplementedError("no batch call")


class BlockingPeer(Peer):
    """Its client blocks; 64 producers are threads."""

    @abstractmethod
    def connect(self, url: str) -> None: ...

    @abstractmethod
    def disconnect(self) -> None: ...

    @abstractmethod
    def put(self, args: Args) -> None: ...

    def put_many(self, many: Sequence[Args]) -> None:
        raise NotImplementedError("no batch call")
