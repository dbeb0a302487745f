"""The embedded Postgres starts anywhere, comes back with its data, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from streamworker.embedded import EmbeddedServerError, EmbeddedServerMissing
from streamworker.embedded_postgres import EmbeddedPostgres, find_postgres
from tests.waiting import wait_until


async def value_of(server: EmbeddedPostgres, query: str) -> object:
    connection = await asyncpg.connect(server.dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def test_it_answers_as_soon_as_it_has_started_and_deletes_its_data_when_it_stops() -> None:
    server = EmbeddedPostgres()

    with server:
        assert asyncio.run(value_of(server, "SELECT 1 + 1")) == 2
        folder = Path(server.dsn.partition("host=")[2])
        assert folder.stat().st_mode & 0o077 == 0, "others may not reach the socket"

    assert not folder.exists()
    assert not server.running


@pytest.mark.parametrize("how", ["kill", "shut_down"])
async def test_its_data_survives(how: str, own_postgres: Callable[[], EmbeddedPostgres]) -> None:
    server = own_postgres()
    await value_of(server, "CREATE TABLE kept AS SELECT 7 AS seven")
    before = server.dsn

    getattr(server, how)()
    with pytest.raises((OSError, asyncpg.PostgresError)):
        await value_of(server, "SELECT 1")
    server.restart()

    assert server.dsn == before
    assert await value_of(server, "SELECT seven FROM kept") == 7


async def test_a_paused_server_answers_nobody_until_it_is_resumed(
    own_postgres: Callable[[], EmbeddedPostgres],
) -> None:
    server = own_postgres()

    server.pause()
    with pytest.raises(TimeoutError):
        await asyncpg.connect(server.dsn, timeout=0.3)
    server.resume()

    assert await value_of(server, "SELECT 1") == 1


def test_it_dies_with_the_process_that_started_it() -> None:
    program = (
        "from streamworker.embedded_postgres import EmbeddedPostgres as E\n"
        "server = E().start()\nprint(server.pid, server.dsn, flush=True)\nimport time; time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pid, _, folder = child.stdout.readline().replace("?host=", " ").split()

    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()

    wait_until(lambda: not _alive(pid), what="the server is gone")
    shutil.rmtree(folder)


def _alive(pid: str) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root cannot run Postgres itself")
def test_programs_in_a_closed_home_are_copied_and_the_home_stays_closed(tmp_path: Path) -> None:
    closed = tmp_path / "home"
    closed.mkdir(mode=0o700)
    installed = find_postgres().parents[1]
    shutil.copytree(installed, closed / installed.name)
    libraries = installed.with_name(f"{installed.name}.libs")
    shutil.copytree(libraries, closed / libraries.name)

    with EmbeddedPostgres(closed / installed.name / "pginstall" / "bin") as server:
        assert asyncio.run(value_of(server, "SELECT 1")) == 1

    assert closed.stat().st_mode & 0o777 == 0o700


def test_a_bad_setting_is_told_with_the_servers_own_words() -> None:
    with (
        pytest.raises(EmbeddedServerError, match="shared_buffers"),
        EmbeddedPostgres(config={"shared_buffers": "'much'"}),
    ):
        pass


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(EmbeddedServerMissing, match=r"streamworker\[embedded\]"):
        find_postgres()
