"""Who can notice that a guard of the scripts is gone: a test by name, random sequences, histories."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from streamworker.store.connection import ReplyError, SyncLink
from tests.integration.stateful.bench import Wire
from tests.integration.stateful.running import run_examples
from tests.lua.driver import Shard
from tests.lua.mutating import Mutation
from tests.servers import BenchServer
from tests.simulation.stage import Stage


class Hunter(Protocol):
    """Looks for what is wrong with the scripts of a folder. A context manager."""

    def __enter__(self) -> Self:
        """Have a server."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        ...

    def hunt(self, mutation: Mutation, folder: Path) -> str | None:
        """What noticed the mutation; None: nothing did."""
        ...


class _WithServer:
    def __init__(self) -> None:
        self.server = BenchServer("valkey")

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop()


class NamedTest(_WithServer):
    """The test that the list names: it knows what it is looking for."""

    def hunt(self, mutation: Mutation, folder: Path) -> str | None:
        link = SyncLink(self.server.url)
        shard = Shard(link, "mutants", folder=folder)
        try:
            mutation.noticed_by(shard)
        except (AssertionError, ReplyError, LookupError, ValueError):
            return mutation.noticed_by.__name__
        finally:
            shard.clear()
            link.close()
        return None


class Sequences(_WithServer):
    """The stateful test: random steps, and everything compared with the model after each."""

    def hunt(self, mutation: Mutation, folder: Path) -> str | None:
        wire = Wire(self.server.url)
        ran, error = run_examples(wire, folder=folder, shrink=False)
        wire.close()
        return None if error is None else f"sequence {ran}"


class Histories:
    """The simulation: whole histories, of which the checker sees the outcome."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._stage = Stage()

    def __enter__(self) -> Self:
        self._stage.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stage.__exit__(kind, error, trace)

    def hunt(self, mutation: Mutation, folder: Path) -> str | None:
        self._stage.use(folder)
        for seed in range(self._seeds):
            try:
                wrong = self._stage.run(seed).wrong
            except Exception as error:  # whatever a broken script makes of the state
                wrong = [type(error).__name__]
            if wrong:
                return f"seed {seed}: {wrong[0].partition(':')[0]}"
        return None
