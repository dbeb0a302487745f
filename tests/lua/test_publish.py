"""publish: what tasks declare stands in `meta`, numbered by the change that wrote it (D17)."""

from __future__ import annotations

import pytest

from streamworker.store import scripts
from tests.lua.driver import Shard


def publish(shard: Shard, **declared: str) -> list[int]:
    """The number of each task."""
    rows = [word for name, text in declared.items() for word in (f"task:{name}", text)]
    return [int(number) for number in shard.send(scripts.publish(rows=rows))]


def meta(shard: Shard) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in shard.look().hashes.get("meta", {}).items()}


def test_what_is_published_has_the_number_of_its_change(shard: Shard) -> None:
    assert publish(shard, pack='{"lane":"a"}', ship='{"lane":"b"}') == [1, 1]
    assert publish(shard, pack='{"lane":"a"}', ship='{"lane":"c"}') == [1, 2]
    assert publish(shard, ship='{"lane":"c"}', send="{}") == [2, 3]

    assert meta(shard) == {
        "manifest": "3",
        "task:pack": '1 {"lane":"a"}',
        "task:ship": '2 {"lane":"c"}',
        "task:send": "3 {}",
    }


@pytest.mark.parametrize("declared", [{}, {"pack": "1 2 {}"}])
def test_nothing_changes_when_nothing_changed(shard: Shard, declared: dict[str, str]) -> None:
    publish(shard, pack="1 2 {}", ship="{}")
    before = shard.look()

    assert publish(shard, **declared) == [1] * len(declared)

    assert shard.look() == before


def test_another_fleet_of_the_namespace_keeps_its_tasks(shard: Shard) -> None:
    publish(shard, pack="{}")
    publish(shard, ship="{}")

    assert set(meta(shard)) == {"manifest", "task:pack", "task:ship"}
