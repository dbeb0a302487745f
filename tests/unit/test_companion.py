"""What runs beside a worker: it begins again when it dies, and when the workers have new code."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from streamworker.cli.companion import Companion
from tests.waiting import wait_until


def born(told: Path) -> list[str]:
    """Their pids, in order."""
    return told.read_text().split() if told.exists() else []


def test_a_companion_begins_again_with_the_workers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = tmp_path / "born"
    caplog.set_level(logging.INFO, "streamworker.companion")
    with Companion("mirror", ["/bin/sh", "-c", f"echo $$ >> {told}; exec sleep 60"]) as mirror:
        wait_until(lambda: len(born(told)) == 1, what="it runs")

        mirror.renew()

        wait_until(lambda: len(born(told)) == 2, what="another runs")
    assert [record.getMessage() for record in caplog.records] == ["the mirror begins again, with the workers"]


def test_a_companion_that_waits_after_a_death_does_not_wait_any_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = tmp_path / "born"
    monkeypatch.setattr("streamworker.cli.companion.RESPAWN_FIRST", 30.0)
    command = ["/bin/sh", "-c", f"echo $$ >> {told}; exit 2"]
    with Companion("relay", command) as relay:
        wait_until(
            lambda: "the relay ended with 2; it is started again in 30 s" in caplog.text, what="it died"
        )

        relay.renew()

        wait_until(lambda: len(born(told)) == 2, what="another runs")
