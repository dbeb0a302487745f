"""Prometheus and its tool, from the PATH: Debian's package `prometheus` has both."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not on the PATH; Debian's package `prometheus` has it",
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="prometheus is not on the PATH; Debian has it: apt-get install prometheus",
)


def promtool(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run(
        ["promtool", *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=240
    )
