"""Connections that handlers have in turn."""

from __future__ import annotations

import pytest

from streamworker.effects import connections
from streamworker.effects.connections import Connections


async def test_a_connection_that_nobody_used_for_long_is_not_used_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands between may have dropped it without a word: a handler waited half a minute in vain."""
    made = Connections(dsn, ["normal"], 2)

    async def server_process() -> int:
        async with made.connection("normal") as link:
            return int(await link.fetchval("SELECT pg_backend_pid()"))

    first = await server_process()
    assert await server_process() == first

    monkeypatch.setattr(connections, "IDLE_SECONDS", -1)
    assert await server_process() != first
    await made.close()
