"""Where the contenders' packages are: one folder each in the user's cache, made on first use."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmarks.catalogue import Contender, Runtime

HERE = Path(__file__).parent
#: Seconds that an installation may take.
INSTALL_SECONDS = 600


class Unavailable(Exception):
    """A contender's packages cannot be had here; the message says why."""


def cache_folder() -> Path:
    """`streamworker-bench` in the user's cache folder (XDG)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamworker-bench"


@dataclass(frozen=True, slots=True)
class Environment:
    """An installed contender."""

    contender: Contender
    folder: Path

    @classmethod
    def of(cls, contender: Contender, cache: Path) -> Environment:
        """The contender's environment; made if it is not there or its requirements changed.

        Raises Unavailable.
        """
        environment = cls(contender, cache / contender.name)
        if contender.runtime is not Runtime.HERE:
            environment._ensure()
        return environment

    @property
    def requirements(self) -> Path:
        return HERE / "requirements" / f"{self.contender.name}.txt"

    def versions(self) -> dict[str, str]:
        """The contender's package and what else decides the figures."""
        if self.contender.runtime is Runtime.HERE:
            own = {name: metadata.version(name) for name in ("redis", "hiredis", "orjson")}
            return {"streamworker": metadata.version("streamworker"), "revision": _revision(), **own}
        return dict(line.split("==") for line in self.requirements.read_text().split())

    def command(self, role: str, *options: str) -> list[str]:
        """The command that plays a role, for a process with `variables` in the repository's folder."""
        if self.contender.runtime is Runtime.NODE:
            adapter = HERE / "inside" / "adapters" / f"{self.contender.name}.mjs"
            return ["node", str(adapter), role, *options]
        python = sys.executable if self.contender.runtime is Runtime.HERE else str(self._python)
        return [python, "-m", "benchmarks.inside.host", self.contender.label, role, *options]

    def variables(self) -> dict[str, str]:
        # What a user's shell says must not change what is measured.
        own = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWORKER_")}
        return {**own, "BENCH_PACKAGES": str(self.folder), "PYTHONUNBUFFERED": "1"}

    @property
    def _python(self) -> Path:
        return self.folder / "bin" / "python"

    def _ensure(self) -> None:
        wanted = hashlib.sha256(self.requirements.read_bytes() + sys.version.encode()).hexdigest()
        installed = self.folder / "installed"
        if installed.exists() and installed.read_text() == wanted:
            return
        print(f"installing {self.contender.name} in {self.folder}", file=sys.stderr, flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.contender.runtime is Runtime.NODE:
            if not shutil.which("node") or not shutil.which("npm"):
                raise Unavailable("node and npm are not on the PATH")
            packages = [line.replace("==", "@") for line in self.requirements.read_text().split()]
            self._install(["npm", "install", "--silent", "--prefix", str(self.folder), *packages])
        else:
            self._install([_interpreter(self.contender.python), "-m", "venv", str(self.folder)])
            pip = [str(self._python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            self._install([*pip, "--requirement", str(self.requirements)])
        installed.write_text(wanted)

    def _install(self, command: list[str]) -> None:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{command[0]} was not done after {INSTALL_SECONDS} s") from None
        if done.returncode:
            raise Unavailable(f"{' '.join(command[:4])} ... failed: {done.stderr.strip()[-600:]}")


def _interpreter(oldest: tuple[int, int] | None) -> str:
    """A Python that is new enough: ours, or another on the PATH. Raises Unavailable."""
    if oldest is None or sys.version_info[:2] >= oldest:
        return sys.executable
    for minor in range(oldest[1], oldest[1] + 5):
        found = shutil.which(f"python{oldest[0]}.{minor}")
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    name = "python{}.{}".format(*oldest)
    raise Unavailable(f"it needs {name} or later, and there is none on the PATH")


def _revision() -> str:
    describe = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(describe, cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no git"
