"""How many processors a worker may use, by what containers say of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamworker import App, Worker
from streamworker.worker import cores


@pytest.fixture(autouse=True)
def _a_large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(os, "cpu_count", lambda: 96)


def laid_out(folder: Path, ours: str, **files: str) -> tuple[Path, Path]:
    """Control groups: files by their paths, with `__` for a slash and `_` for a dot at the end."""
    groups, mine = folder / "cgroup", folder / "self"
    mine.write_text(ours)
    for name, text in files.items():
        *place, file = name.split("__")
        path = groups.joinpath(*place, file.replace("cpu_max", "cpu.max").replace("cpu_cfs", "cpu.cfs"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return groups, mine


@pytest.mark.parametrize(
    ("ours", "files", "expected"),
    [
        ("0::/\n", {"cpu_max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu_max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu_max": "10000 100000\n"}, 1),
        ("0::/\n", {"cpu_max": "max 100000\n"}, 64),
        ("0::/\n", {}, 64),
        ("0::/\n", {"cpu_max": "nonsense"}, 64),
        ("", {"cpu_max": "200000 100000\n"}, 64),
        # Its own group has no limit, the pod's above it has one.
        ("0::/pod/one\n", {"pod__one__cpu_max": "max 100000\n", "pod__cpu_max": "400000 100000\n"}, 4),
        ("0::/pod/one\n", {"pod__one__cpu_max": "300000 100000\n", "pod__cpu_max": "400000 100000\n"}, 3),
        # Version 1, as its controllers are mounted, and as containers see it.
        (
            "5:memory:/a\n4:cpu,cpuacct:/a\n",
            {"cpu,cpuacct__a__cpu_cfs_quota_us": "200000\n", "cpu,cpuacct__a__cpu_cfs_period_us": "100000\n"},
            2,
        ),
        (
            "4:cpu,cpuacct:/b\n",
            {"cpu__cpu_cfs_quota_us": "300000\n", "cpu__cpu_cfs_period_us": "100000\n"},
            3,
        ),
        ("4:cpu,cpuacct:/b\n", {"cpu__cpu_cfs_quota_us": "-1\n", "cpu__cpu_cfs_period_us": "100000\n"}, 64),
        ("1:cpuset:/b\n", {"cpu_max": "200000 100000\n"}, 64),
    ],
)
def test_the_limit_of_a_container_is_known(
    tmp_path: Path, ours: str, files: dict[str, str], expected: int
) -> None:
    assert cores.usable(*laid_out(tmp_path, ours, **files)) == expected


def test_affinity_counts_where_there_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 7})

    assert cores.usable(*laid_out(tmp_path, "0::/\n", cpu_max="400000 100000")) == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores.usable(tmp_path / "none", tmp_path / "none") == 96


def test_a_worker_has_a_child_for_each_processor_that_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable", lambda: 3)

    assert Worker(App("shop"), concurrency=32).processes_for_tasks == 3
    assert Worker(App("shop"), concurrency=2).processes_for_tasks == 2
