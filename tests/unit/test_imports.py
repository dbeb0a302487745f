"""Imports point one way, and a producer pays only for what it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
#: What importing the client may cost.
LIMIT_SECONDS = 0.150


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


def test_importing_the_client_does_not_import_the_worker() -> None:
    for statement in ("import streamworker.client", "from streamworker import Client, SyncClient"):
        loaded = modules_after(statement)

        assert "streamworker.client" in loaded
        above = ("streamworker.worker", "streamworker.cli", "streamworker.ops", "streamworker.app")
        assert [name for name in loaded if name.startswith(above)] == []


def test_defining_an_app_does_not_import_the_worker() -> None:
    loaded = modules_after("from streamworker import App, Context\napp = App('x')")

    assert "streamworker.app" in loaded
    assert [name for name in loaded if name.startswith(("streamworker.worker", "streamworker.cli"))] == []


def test_importing_the_client_is_quick() -> None:
    # Time of the processor, and the best of some runs: what else the machine does is not ours to answer for.
    program = (
        "import time; began = time.process_time()\n"
        "import streamworker.client; print(time.process_time() - began)"
    )

    best = min(float(run_python(program)) for _ in range(7))

    assert best < LIMIT_SECONDS, f"importing streamworker.client takes {best * 1000:.0f} ms"
