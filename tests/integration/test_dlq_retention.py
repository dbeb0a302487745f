"""A keeper lets the oldest dead letters go when they are too many, and the log tells which."""

from __future__ import annotations

import pytest

from streamworker import App
from streamworker.worker.keeper import TRIM_COUNT, Keeper
from tests.integration.cli_desk import Desk
from tests.servers import BenchServer


async def test_the_keeper_keeps_as_many_as_the_settings_say(
    valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STREAMWORKER_DLQ_MAX_COUNT", "3")
    app = App(namespace, redis_url=valkey.url)
    keeper = Keeper(app, "w1")
    with Desk(valkey.url, namespace) as desk:
        ids = [desk.dead() for _ in range(TRIM_COUNT + 10)]

        await keeper.trim_letters()
        await keeper.close()

        assert desk.letters() == ids[-3:]
        assert desk.redis.hget(desk.keys.stats, "dead_trimmed") == b"%d" % (TRIM_COUNT + 7)
    assert f"{TRIM_COUNT} dead letters removed for good: 0 of them were too old" in caplog.text
