"""A real PgBouncer before a Postgres, when the machine has one: Debian's package `pgbouncer`."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

import psycopg
import pytest
from psycopg.rows import dict_row

from streamworker.embedded_postgres import USERS
from tests.waiting import wait_until

#: Debian has it where only root looks.
PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
ABSENT = "no pgbouncer on the PATH: apt-get install pgbouncer"
PORT = 5432  # only names the sockets


def find_pgbouncer() -> str | None:
    """The program, or None."""
    return shutil.which("pgbouncer", path=PLACES)


class PgBouncer:
    """One process on a private socket, with its own ini and auth file; a context manager.

    It hands its clients on to the server of `dsn`. `settings` are lines of its ini, `users` have passwords.
    """

    def __init__(
        self,
        dsn: str,
        settings: Mapping[str, object] | None = None,
        *,
        users: Mapping[str, str] | None = None,
    ) -> None:
        program = find_pgbouncer()
        if program is None:
            pytest.skip(ABSENT)
        self._program = program
        self._dsn = dsn
        self.settings: dict[str, object] = {
            "pool_mode": "transaction",
            "default_pool_size": 2,
            "server_login_retry": 0.2,
            "auth_type": "trust",
            "log_connections": 0,
            "log_disconnections": 0,
            **(settings or {}),
        }
        #: Names and passwords of its auth file.
        self.users = {"postgres": "", **(users or {})}
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._home = Path(tempfile.mkdtemp(prefix="streamworker-pgbouncer-"))
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._room, ignore_errors=True)

    @property
    def _room(self) -> Path:
        assert self._home is not None, "it is used within its block"
        return self._home

    def dsn(self, user: str = "postgres", password: str = "") -> str:
        """The same database through it."""
        who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
        return f"postgresql://{who}@{urlsplit(self._dsn).path}?host={self._room}"

    def start(self) -> None:
        """Start it, and return once it answers."""
        self.write()
        with (self._room / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, str(self._room / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **_as_the_postgres(),
            )
        wait_until(self._answers, what=f"PgBouncer answers; its log: {self.log()}")

    def kill(self) -> None:
        """End it at once, as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def write(self, **changes: object) -> None:
        """Write its files with these settings more; `tell("RELOAD")` has a running one read them."""
        self.settings |= changes
        host = parse_qs(urlsplit(self._dsn).query)["host"][0]
        ini = [
            "[databases]",
            f"* = host={host} port={PORT}",
            "[pgbouncer]",
            f"listen_port = {PORT}",
            f"unix_socket_dir = {self._room}",
            f"auth_file = {self._room / 'users'}",
            "admin_users = postgres",
            *(f"{name} = {value}" for name, value in self.settings.items()),
        ]
        (self._room / "pgbouncer.ini").write_text("\n".join(ini) + "\n")
        (self._room / "users").write_text("".join(f'"{n}" "{p}"\n' for n, p in self.users.items()))
        owner = _as_the_postgres()
        for path in (self._room, *self._room.iterdir()):
            if owner:
                os.chown(path, owner["user"], owner["group"])

    def tell(self, command: str) -> list[dict[str, Any]]:
        """Say a word to its console, such as `PAUSE`, `RECONNECT`, `SHOW POOLS`; returns its rows."""
        dsn = urlunsplit(urlsplit(self.dsn("postgres", self.users["postgres"]))._replace(path="/pgbouncer"))
        with psycopg.connect(dsn, autocommit=True) as console:
            cursor = console.cursor(row_factory=dict_row)
            cursor.execute(command.encode())
            return cursor.fetchall() if cursor.description else []

    def log(self) -> str:
        return (self._room / "log").read_text(errors="replace")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"PgBouncer ended with {self._process.returncode}: {self.log()}")
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._room / f".s.PGSQL.{PORT}")) == 0


def _as_the_postgres() -> dict[str, Any]:
    """Whom it runs as where we are root: it refuses to be root, and the socket is that user's."""
    if os.geteuid() != 0:
        return {}
    for name in USERS:
        try:
            owner = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    raise AssertionError(f"there is no user {' or '.join(USERS)}")
