"""A primary, two replicas and three sentinels that watch them, all with passwords: real ones, of one kind."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from streamworker.embedded import HOST, EmbeddedServer, _free_port, end_process
from tests.servers import BenchServer, binary_of
from tests.waiting import wait_until

SERVICE, PASSWORD, SENTINEL_PASSWORD = "orders", "pri/m@ry", "sent?nel"
#: Milliseconds of silence after which a server is down, and for a failover.
DOWN, FAILOVER = 500, 10_000


class Sentinel:
    """One sentinel, made to watch `primary`."""

    def __init__(self, kind: str, directory: Path, primary: EmbeddedServer) -> None:
        directory.mkdir()
        self.port = _free_port()
        config = directory / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind {HOST}\ndir {directory}\nrequirepass {SENTINEL_PASSWORD}\n"
            f"sentinel sentinel-pass {SENTINEL_PASSWORD}\n"
            f"sentinel monitor {SERVICE} {HOST} {primary.port} 2\n"
            f"sentinel auth-pass {SERVICE} {PASSWORD}\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN}\n"
            f"sentinel failover-timeout {SERVICE} {FAILOVER}\n"
        )
        self._log = (directory / "log").open("wb")
        self.process = subprocess.Popen(
            [binary_of(kind), config, "--sentinel"], stdout=self._log, stderr=subprocess.STDOUT
        )
        self.redis: Any = redis.Redis(port=self.port, password=SENTINEL_PASSWORD, decode_responses=True)

    def state(self) -> dict[str, Any]:
        """What it knows of the service."""
        answer = self.tell("MASTER", SERVICE)
        return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))

    def tell(self, *words: str) -> Any:
        """Send it a command of its own."""
        return self.redis.execute_command("SENTINEL", *words)

    def answers(self) -> bool:
        try:
            return bool(self.redis.ping())
        except redis.RedisError:
            return False

    def stop(self) -> None:
        self.redis.close()
        end_process(self.process, signal.SIGTERM, patience=2)
        self._log.close()


class Watched:
    """The whole; a context manager. Entered once the sentinels know each other and the replica."""

    def __init__(self, kind: str, directory: Path) -> None:
        config = {
            "requirepass": f'"{PASSWORD}"',
            "masterauth": f'"{PASSWORD}"',
            "repl-diskless-sync-delay": "0",
            "min-replicas-to-write": "1",  # a primary whose replicas follow another takes nothing
        }
        self.servers = [BenchServer(kind, appendonly=True, config=config) for _ in range(3)]
        self._kind, self._directory = kind, directory
        self.sentinels: list[Sentinel] = []

    def __enter__(self) -> Self:
        try:
            first, *others = (one.start() for one in self.servers)
            for one in others:
                self.client(one).replicaof(HOST, str(first.port))
            wait_until(lambda: self.caught_up(first), what="the replicas are in step")
            for number in range(3):
                self.sentinels.append(Sentinel(self._kind, self._directory / f"sentinel{number}", first))
            wait_until(lambda: all(one.answers() for one in self.sentinels), what="the sentinels answer")
            self.settled()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sentinel in self.sentinels:
            sentinel.stop()
        for server in self.servers:
            server.stop()

    def url(self, *, password: str = "sent%3Fnel", service: str = SERVICE, database: int = 0) -> str:
        """For clients."""
        hosts = ",".join(f"{HOST}:{one.port}" for one in self.sentinels)
        secret = f"?sentinel_password={password}" if password else ""
        return f"redis+sentinel://:pri%2Fm%40ry@{hosts}/{service}/{database}{secret}"

    def client(self, server: EmbeddedServer) -> Any:
        """Of one of the servers."""
        return redis.Redis(
            port=server.port, password=PASSWORD, decode_responses=True, single_connection_client=True
        )

    def caught_up(self, server: EmbeddedServer) -> bool:
        """Whether both replicas of this primary have all that it had a moment ago."""
        client = self.client(server)
        try:
            client.set("caught-up", 1)  # WAIT is about what the connection itself wrote
        except redis.ResponseError:  # NOREPLICAS
            return False
        return bool(client.wait(2, 1000) == 2)

    def settled(self) -> None:
        """Wait until all sentinels know two others, both replicas, and the same primary that is well."""

        def known() -> bool:
            states = [one.state() for one in self.sentinels]
            return (
                len({state["port"] for state in states}) == 1
                and all(int(state["num-other-sentinels"]) == 2 for state in states)
                and all(int(state["num-slaves"]) == 2 and state["flags"] == "master" for state in states)
            )

        wait_until(known, timeout=30, what="the sentinels know each other, the primary and its replicas")

    def primary(self) -> EmbeddedServer:
        """Who all sentinels say is the primary."""
        (port,) = {int(one.state()["port"]) for one in self.sentinels}
        return next(one for one in self.servers if one.port == port)
