"""pressure: the level of each lane, written when it changes."""

from __future__ import annotations

from streamworker.store import scripts
from tests.lua.driver import Shard


def tell(shard: Shard, **levels: str) -> int:
    return int(shard.send(scripts.pressure(rows=[word for one in levels.items() for word in one])))


def policies(shard: Shard) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in shard.look().hashes.get("policies", {}).items()}


def test_a_level_is_written_when_it_changes(shard: Shard) -> None:
    assert tell(shard, normal="high", bulk="over") == 2
    assert policies(shard) == {"pressure:normal": "high", "pressure:bulk": "over"}

    assert tell(shard, normal="ok", bulk="over") == 1
    assert policies(shard) == {"pressure:normal": "ok", "pressure:bulk": "over"}


def test_a_lane_that_was_never_under_pressure_takes_no_room(shard: Shard) -> None:
    assert tell(shard, normal="ok") == 0
    assert policies(shard) == {}


def test_what_else_is_set_at_run_time_stays(shard: Shard) -> None:
    shard.redis("HSET", shard.keys.policies, "mirror", "m1")

    tell(shard, normal="high")

    assert policies(shard) == {"mirror": "m1", "pressure:normal": "high"}
