"""Imports point one way, and a producer pays only for what it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MODULE = "streamworker.client"
#: What importing the client may cost, in seconds of processor time.
LIMIT_SECONDS = 0.150
#: The same where a slow machine or interpreter takes more than 45 ms for asyncio alone, which is part of it:
#: as a multiple of that time. Measured: 2.3 to 2.8; redis-py would add 2.5 and typer 1.2.
LIMIT_IN_ASYNCIO = 3.4


def run_python(program: str) -> str:
    # With bytecode, as an installed package has it, even where the environment asks for none.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def modules_after(statement: str) -> set[str]:
    return set(run_python(f"{statement}\nimport sys\nprint(*sys.modules)").split())


def test_imports_point_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")

    done = subprocess.run([linter, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def loaded_of(statement: str, *packages: str) -> list[str]:
    """Which of these packages, or what is in them, a statement loads."""
    loaded = modules_after(statement)
    return sorted(name for name in loaded if name.startswith(tuple(f"{package}." for package in packages)))


@pytest.mark.parametrize(
    "statement",
    [
        "import streamworker.client",
        "from streamworker import Client, Job",
        "import streamworker.sync_client",
        "from streamworker import SyncClient, SyncJob",
        "from streamworker import App, Context\napp = App('x')",
    ],
)
def test_producers_load_no_worker_and_no_heavy_library(statement: str) -> None:
    assert loaded_of(statement, "streamworker.core", "streamworker.store"), "nothing was loaded at all"
    assert loaded_of(statement, "streamworker.worker", "streamworker.cli", "streamworker.ops") == []
    # redis-py alone takes longer than all the rest: it is imported with the first connection.
    assert loaded_of(statement, "redis", "anyio", "prometheus_client", "typer", "rich", "asyncpg") == []


def test_importing_the_client_is_quick() -> None:
    program = "import time; began = time.process_time(); import {}; print(time.process_time() - began)"

    # The best of some runs, in turn, so that what else the machine does meanwhile hits both alike.
    asyncio = client = limit = float("inf")
    for _ in range(20):
        asyncio = min(asyncio, float(run_python(program.format("asyncio"))))
        client = min(client, float(run_python(program.format(MODULE))))
        limit = max(LIMIT_SECONDS, LIMIT_IN_ASYNCIO * asyncio)
        if client < limit:
            break
    assert client < limit, f"importing {MODULE} takes {client * 1000:.0f} ms of at most {limit * 1000:.0f} ms"
