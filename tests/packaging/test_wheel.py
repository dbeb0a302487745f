"""The wheel is whole: it runs from an empty folder, with its scripts inside and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.packaging


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without anything of the checkout in its environment; return what it printed."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STREAMWORKER"))
    }
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, REPOSITORY, cwd=folder
    )
    (built,) = folder.glob("streamworker-*.whl")
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(
        sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, REPOSITORY, cwd=folder
    )
    (built,) = folder.glob("streamworker-*.tar.gz")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtualenv that has the wheel, and finds what it depends on in ours."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    interpreter = folder / "bin" / "python"
    run(interpreter, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # The path of our packages as a plain entry: their own .pth files, such as the one of the editable
    # checkout, are not read from there.
    ours = subprocess.run(
        [sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (packages / "dependencies.pth").write_text(ours.stdout)
    return interpreter


def test_the_wheel_has_each_script_and_the_types_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    scripts = {f"streamworker/{path.relative_to(REPOSITORY)}" for path in (REPOSITORY / "lua").rglob("*.lua")}

    assert scripts
    assert scripts <= names
    assert "streamworker/py.typed" in names
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"streamworker"}
    assert [name for name in names if name.endswith((".pyc", "conftest.py"))] == []


def test_the_wheel_of_the_sdist_is_the_same(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    run("tar", "-xzf", sdist, "-C", tmp_path, cwd=tmp_path)
    (source,) = tmp_path.glob("streamworker-*")

    run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, source, cwd=tmp_path
    )

    (rebuilt,) = tmp_path.glob("*.whl")
    assert set(zipfile.ZipFile(rebuilt).namelist()) == set(zipfile.ZipFile(wheel).namelist())


def test_it_runs_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    where = run(installed, "-c", "import streamworker; print(streamworker.__file__)", cwd=tmp_path)
    assert str(installed.parents[1]) in where

    version = run(installed, "-m", "streamworker", "--version", cwd=tmp_path)
    assert (
        run(installed, "-c", "import streamworker; print(streamworker.__version__)", cwd=tmp_path).strip()
        in version
    )


def test_its_scripts_are_found_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    shown = run(installed.with_name("streamworker"), "lua", "show", "claim", cwd=tmp_path)

    assert "redis.call" in shown
    assert re.search(r"^-- include:", shown, re.MULTILINE) is None


def test_its_dashboards_are_exported_to_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    run(installed.with_name("streamworker"), "dashboards", "export", "monitoring", cwd=tmp_path)

    names = {path.name for path in (tmp_path / "monitoring").rglob("*") if path.is_file()}
    dashboards = {path.name for path in (REPOSITORY / "grafana" / "dashboards").glob("*.json")}
    assert dashboards
    assert dashboards | {"streamworker.rules.yml", "runbook-backlog.md"} <= names
