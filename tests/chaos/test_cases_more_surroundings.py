"""More faults of what a worker's process finds around it, beyond the list of cases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamworker import App
from streamworker.cli import companion
from streamworker.cli.main import command_line
from streamworker.core.errors import ConfigurationError
from streamworker.store import lua
from streamworker.telemetry.http import Address, ServerThread
from streamworker.worker import parts
from tests.integration.serving import serving
from tests.servers import BenchServer
from tests.waiting import wait_until, wait_until_async


def test_a_companion_that_cannot_be_started_now_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever keeps it died of it, and the mirror stayed away for as long as the workers ran."""
    begin, refused, there = subprocess.Popen, 0, tmp_path / "there"

    def fickle(*arguments: Any, **options: Any) -> Any:
        nonlocal refused
        refused += 1
        if refused == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return begin(*arguments, **options)

    monkeypatch.setattr(companion, "RESPAWN_FIRST", 0.01)
    monkeypatch.setattr(subprocess, "Popen", fickle)
    with companion.Companion("mirror", ["/bin/sh", "-c", f"touch {there}; exec sleep 60"]):
        wait_until(there.exists, what="it is there")


def test_a_command_whose_stdout_is_closed_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that a daemon had started without one ended with 1 whenever it was stopped."""
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as left:
        command_line("lua")(["lua", "list"])

    assert left.value.code == 0


def test_a_folder_whose_name_is_too_long_for_a_socket_is_named_as_the_cause(tmp_path: Path) -> None:
    """It was said to be the port's, or the host's."""
    thread = ServerThread({}, Address(path=tmp_path / ("x" * 108)))

    with pytest.raises(ConfigurationError, match="TMPDIR"):
        thread.start()


async def test_a_worker_soon_needs_no_script_from_the_disk(
    valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade in place it took locks, and said good-bye, by the scripts of another version."""
    monkeypatch.setattr(parts, "READ_EVERY", 0.0)
    lua.load.cache_clear()
    async with App("cases", redis_url=valkey.url, namespace=namespace) as app, serving(app):
        await wait_until_async(
            lambda: lua.load.cache_info().currsize == len(lua.names()), what="all are read"
        )
