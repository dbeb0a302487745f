"""The faults of the bench: each is done to real processes, and noted for the judge."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from streamworker.store.caller import BACKOFF_LAST
from streamworker.store.keys import Keys
from tests.chaos.fleet import Fleet, Worker
from tests.chaos.history import Fault, FaultKind
from tests.proxy import Proxy
from tests.servers import BenchServer

#: What every script call has.
_SCRIPT = b"EVALSHA"


@dataclass(slots=True, eq=False)
class _Struck:
    """A fault as it is noted; who could sweep afterwards is known later."""

    kind: FaultKind
    begin: float
    end: float | None = None
    worker: Worker | None = None
    #: The sweeps may have stopped.
    keeper: bool = True


class Faults:
    """What can be done to the server, the workers and the network of a bench."""

    server: BenchServer
    fleet: Fleet
    front: Proxy
    keys: Keys
    redis: Any

    def __init__(self) -> None:
        self._struck: list[_Struck] = []
        #: Ends of workers that nobody had ordered.
        self.problems: list[str] = []
        self._server_away: _Struck | None = None
        self._away: dict[Worker | None, _Struck] = {}

    def noted(self) -> list[Fault]:
        """The faults so far, as the judge takes them."""
        return [self._as_fault(struck) for struck in list(self._struck)]

    def forget(self) -> None:
        """Drop the faults that are over."""
        under_way = [*self._away.values(), self._server_away]
        self._struck = [
            struck
            for struck in self._struck
            if struck in under_way or (struck.worker is not None and struck.worker.is_frozen)
        ]

    def _as_fault(self, struck: _Struck) -> Fault:
        worker = None if struck.worker is None else struck.worker.name
        return Fault(struck.kind, struck.begin, struck.end, worker, self._sweeps_from(struck))

    def _sweeps_from(self, struck: _Struck) -> float | None:
        """When somebody could sweep again, if the fault stopped the sweeps."""
        if struck.worker is not None and struck.kind is not FaultKind.NETWORK:
            # One worker is out: the others go on at once, if there are any.
            again = self.fleet.can_sweep_from(struck.begin, but=struck.worker)
            if again is None or (again == struck.begin and not struck.keeper):
                return None
            return again
        if not struck.keeper:
            return None
        end = struck.begin if struck.end is None else struck.end
        if struck.kind is not FaultKind.HINTS:
            end += BACKOFF_LAST  # they connect again by then
        return self.fleet.can_sweep_from(end) or end

    def _strike(self, kind: FaultKind, worker: Worker | None = None, *, keeper: bool = True) -> _Struck:
        struck = _Struck(kind, time.time(), None, worker, keeper)
        self._struck.append(struck)
        return struck

    # Workers

    def keeper(self) -> Worker | None:
        """The worker that sweeps, by the election."""
        name = (self.redis.get(self.keys.elect("keeper")) or b"").decode()
        return next((worker for worker in self.fleet.workers if worker.id == name), None)

    def kill(self, worker: Worker) -> None:
        """SIGKILL; returns when it is dead."""
        struck = self._strike(FaultKind.KILL, worker, keeper=self._may_sweep(worker))
        worker.died_at = struck.begin
        worker.process.kill()

    def freeze(self, worker: Worker) -> None:
        """SIGSTOP; `thaw` ends it."""
        struck = self._strike(FaultKind.FREEZE, worker, keeper=self._may_sweep(worker))
        worker.frozen.append((struck.begin, None))
        worker.process.pause()

    def thaw(self, worker: Worker) -> None:
        """SIGCONT."""
        worker.process.resume()
        end = time.time()
        worker.frozen[-1] = (worker.frozen[-1][0], end)
        for struck in self._struck:
            if struck.kind is FaultKind.FREEZE and struck.worker is worker and struck.end is None:
                struck.end = end

    def restart_worker(self, worker: Worker, timeout: float = 30.0) -> int:
        """SIGTERM, and a new one in its place; the exit code."""
        code = self.stop_worker(worker, timeout)
        self.fleet.replace(worker)
        return code

    def stop_worker(self, worker: Worker, timeout: float = 30.0) -> int:
        """SIGTERM, and its exit code; its place stays empty."""
        worker.retired = True
        worker.process.terminate()
        code = worker.process.wait(timeout)
        worker.died_at = time.time()
        return code

    def _may_sweep(self, worker: Worker) -> bool:
        """Whether it is the keeper, or nobody can say who is."""
        try:
            keeper = self.keeper()
        except redis.RedisError:
            return True
        return keeper is None or keeper is worker or not keeper.alive or keeper.is_frozen

    def found_dead(self, worker: Worker) -> None:
        """Note a worker that ended although nobody had asked it to."""
        assert worker.died_at is not None
        if worker.process.returncode != -signal.SIGKILL:  # which is what `crash` does
            end = f"worker {worker.number} ended by itself with {worker.process.returncode}"
            self.problems.append(f"{end}:\n{worker.process.log_tail()}")
        self._struck.append(_Struck(FaultKind.KILL, worker.died_at, None, worker))

    # The server

    def kill_server(self) -> None:
        """SIGKILL; `restart_server` brings it back."""
        self._server_away = self._strike(FaultKind.OUTAGE)
        self.server.kill()

    def restart_server(self) -> None:
        """Start it on the same port and data, after a graceful stop if it runs; returns when it answers."""
        struck = self._server_away or self._strike(FaultKind.OUTAGE)
        self.server.restart()
        struck.end, self._server_away = time.time(), None

    def pause_server(self) -> None:
        """SIGSTOP: connections stay open and get no answer."""
        self._server_away = self._strike(FaultKind.OUTAGE)
        self.server.pause()

    def resume_server(self) -> None:
        self.server.resume()
        if self._server_away is not None:
            self._server_away.end, self._server_away = time.time(), None

    def flush_scripts(self) -> None:
        """SCRIPT FLUSH, as a failover would (R29)."""
        self.redis.script_flush()

    @contextmanager
    def out_of_memory(self) -> Iterator[None]:
        """Redis is full: it refuses what grows."""
        self.redis.config_set("maxmemory", "1mb")
        try:
            yield
        finally:
            self.redis.config_set("maxmemory", "0")

    @contextmanager
    def eviction(self, policy: str) -> Iterator[None]:
        """Another `maxmemory-policy` than `noeviction` (R39)."""
        self.redis.config_set("maxmemory-policy", policy)
        try:
            yield
        finally:
            self.redis.config_set("maxmemory-policy", "noeviction")

    def delete_hints(self, rng: random.Random) -> int:
        """Delete some of the liveness, election and sweep keys; how many went."""
        kinds = tuple(name.encode() for name in (self.keys.elect(""), self.keys.worker(""), self.keys.sweep))
        names = self.redis.scan_iter(match=f"{self.keys.tag}:[esw]*", count=5000)
        chosen = [name for name in names if name.startswith(kinds) and rng.random() < 0.5]
        self._strike(FaultKind.HINTS)
        return int(self.redis.delete(*chosen)) if chosen else 0

    # The network

    def black_hole(self, worker: Worker | None = None) -> None:
        """Pass nothing on, for one worker or for all and the producers, until `restore`."""
        self._cut_off(worker)
        for proxy in self._proxies(worker):
            proxy.black_hole()

    def refuse(self, worker: Worker | None = None) -> None:
        """Reset what is open and refuse what is new, until `restore`."""
        self._cut_off(worker)
        for proxy in self._proxies(worker):
            proxy.refuse()
            proxy.cut_all()

    def delay(self, seconds: float, worker: Worker | None = None) -> None:
        """Hold back each reply so long, until `restore`."""
        self._cut_off(worker, FaultKind.NETWORK)
        for proxy in self._proxies(worker):
            proxy.delay(seconds)

    def restore(self, worker: Worker | None = None) -> None:
        """End the outage of this worker, or of all."""
        for proxy in self._proxies(worker):
            proxy.restore()
        if (struck := self._away.pop(worker, None)) is not None:
            struck.end = time.time()

    def cut(self, worker: Worker | None = None) -> None:
        """Reset what is open; new connections are welcome."""
        self._strike(FaultKind.NETWORK, worker, keeper=worker is None or self._may_sweep(worker))
        for proxy in self._proxies(worker):
            proxy.cut_all()

    def lose_reply(self, worker: Worker | None = None) -> None:
        """Lose the next reply to a script of this worker, or of the producers: it was carried out."""
        self._single(worker).drop_next_reply(_SCRIPT)
        self._strike(FaultKind.NETWORK, worker, keeper=False)

    def lose_request(self, worker: Worker | None = None) -> None:
        """Lose the next script of this worker, or of the producers: it was not carried out."""
        self._single(worker).drop_next_request(_SCRIPT)
        self._strike(FaultKind.NETWORK, worker, keeper=False)

    @contextmanager
    def late_request(self, worker: Worker | None = None) -> Iterator[None]:
        """Hold the next script of this worker, or of the producers, for the block: a late execution."""
        rule = self._single(worker).hold_next_request(_SCRIPT)
        kind = FaultKind.NETWORK if worker is None else FaultKind.PARTITION
        # It may have become the keeper by the time that something is held.
        struck = self._strike(kind, worker, keeper=worker is not None)
        try:
            yield
        finally:
            rule.release()
            struck.end = time.time()

    def _single(self, worker: Worker | None) -> Proxy:
        return self.front if worker is None else worker.place.proxy

    def _cut_off(self, worker: Worker | None, kind: FaultKind | None = None) -> None:
        keeper = worker is None or self._may_sweep(worker)
        kind = kind or (FaultKind.OUTAGE if worker is None else FaultKind.PARTITION)
        self._away[worker] = self._strike(kind, worker, keeper=keeper)

    def _proxies(self, worker: Worker | None) -> list[Proxy]:
        if worker is not None:
            return [worker.place.proxy]
        return [self.front, *(place.proxy for place in self.fleet.places)]
