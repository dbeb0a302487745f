"""A process dies at each point around its calls to Redis, and nothing is lost, done twice or left behind."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamworker.store import lua
from streamworker.store.connection import SyncLink
from tests.crash_points.life import be_client
from tests.crash_points.points import LATER, POINTS, Point, Role, Step
from tests.crash_points.story import play, story_of
from tests.servers import BenchServer
from tests.waiting import wait_until

#: Points played at once, each in a namespace of its own.
AT_ONCE = int(os.environ.get("STREAMWORKER_CRASHES_AT_ONCE", "8"))
#: How often each is played; beyond one, the later calls of a name are played too.
ROUNDS = int(os.environ.get("STREAMWORKER_CRASH_ROUNDS", "1"))

_numbers = itertools.count(1)


@pytest.fixture
def server(valkey: BenchServer) -> BenchServer:
    """A server that knows the scripts: the first call of a name is the one that does something."""
    link = SyncLink(valkey.url)
    for name in lua.names():
        link.call("SCRIPT", "LOAD", lua.load(name).text)
    link.close()
    return valkey


def play_all(server: BenchServer, points: Sequence[Point]) -> list[str]:
    """What is wrong, with the point at which it went so."""

    def one(point: Point) -> list[str]:
        try:
            return [f"{point}: {wrong}" for wrong in play(point, server.url, f"crash{next(_numbers)}")]
        except AssertionError as error:
            return [str(error)]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [wrong for found in pool.map(one, points) for wrong in found]


@pytest.mark.timeout(300 * ROUNDS)
@pytest.mark.parametrize("role", list(Role))
def test_a_process_may_die_at_any_point(server: BenchServer, role: Role) -> None:
    points = [point for point in (*POINTS, *(LATER if ROUNDS > 1 else ())) if point.role is role]

    wrong = play_all(server, points * ROUNDS)

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("step", "placed"), [(Step.BEFORE, 0), (Step.SENT, 1), (Step.ANSWERED, 1)])
def test_the_process_dies_where_the_point_says(
    server: BenchServer, namespace: str, step: Step, placed: int
) -> None:
    point = Point(Role.CLIENT, "enqueue", step)

    with story_of(point, server.url, namespace) as story:
        story.wait_dead(story.begin(be_client, point))

        if placed:  # Redis may read what was sent a moment after its sender is dead
            wait_until(lambda: story.redis.xlen(story.keys.events), what="the job is there")
        assert story.redis.xlen(story.keys.events) == placed
        assert not story.lives[0][0].told_file.exists(), "nobody was told"


def test_a_process_that_does_not_reach_its_point_is_told(server: BenchServer, namespace: str) -> None:
    point = Point(Role.CLIENT, "heartbeat", Step.SENT)

    with pytest.raises(AssertionError, match="client heartbeat sent: the process ended with 0"):
        play(point, server.url, namespace)
