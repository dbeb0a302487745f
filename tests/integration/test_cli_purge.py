"""`streamworker purge`, as an operator types it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from streamworker.ops import purge as act
from streamworker.store import scripts
from streamworker.store.queue import Queue
from tests.integration.cli_desk import Desk
from tests.integration.test_cli_overload import audit, defer
from tests.servers import BenchServer

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def desk(valkey: BenchServer, namespace: str) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as desk:
        yield desk


def fill(desk: Desk, count: int, *, task: str = "add", tenant: str = "", lane: str = "normal") -> None:
    """Many jobs at once."""
    jobs = [
        scripts.NewJob(
            f"{task}-{lane}-{tenant or 'none'}-{number}", task, lane, b'{"t":"add","a":{}}', tenant=tenant
        )
        for number in range(count)
    ]
    for start in range(0, count, 500):
        rows = [word for job in jobs[start : start + 500] for word in job.row()]
        desk.run(scripts.enqueue(clock="", rows=rows))


def test_jobs_that_wait_are_cancelled_once_their_number_was_said(desk: Desk) -> None:
    fill(desk, 250)
    (running,) = desk.claim()
    desk.put(delay="1h")
    other = desk.put(lane="priority")
    one = desk.put()

    found = desk.json("purge", "normal", "--count", "250", "--reason", "nobody wants them")

    assert (found["found"], found["purged"], found["flagged"], found["missed"]) == (250, 250, 0, 0)
    assert found["places"] == ["queued"]
    assert desk.status(running.job_id) == "claimed", "what runs is not touched"
    assert desk.status(other) == "queued"
    shown = desk.json("jobs", "show", one)
    assert (shown["status"], shown["error_code"]) == ("failed_terminal", "cancelled")
    assert shown["history"][-1]["reason"] == "purged"
    assert "nobody wants them" in shown["error"]
    assert audit(desk) == "- 0 note purge:normal all;count=250;found=250 nobody wants them"
    said = desk.json("explain", one)
    assert any("nobody wants them" in line for line in said["says"])


def test_another_number_is_refused_and_changes_nothing(desk: Desk) -> None:
    fill(desk, 100)

    assert "100 jobs are there" in desk.refused("purge", "normal", "--count", "89")
    assert "100 jobs are there" in desk.refused("purge", "normal", "--count", "112")
    assert desk.json("purge", "normal", "--dry-run")["found"] == 100
    assert desk.call("purge", "normal", "--dry-run").stdout == "100 could be purged\n"
    assert "add --count 100" in desk.refused("purge", "normal", code=2)
    assert desk.call("purge", "normal", "--count", "91").stdout == "91 purged\n"
    assert desk.json("purge", "normal", "--dry-run")["found"] == 9, "and no more than were said"


def test_nothing_to_purge_is_no_error(desk: Desk) -> None:
    assert desk.call("purge", "normal").stdout == "0 purged\n"


def test_an_entry_that_somebody_else_wrote_is_no_job(desk: Desk) -> None:
    desk.redis.xadd(desk.keys.stream("normal", "a"), {"foo": "bar"})
    fill(desk, 3)

    (lane,) = [row for row in desk.json("lanes") if row["lane"] == "normal"]
    assert lane["oldest_age_seconds"] is not None
    assert desk.json("purge", "normal", "--count", "3")["purged"] == 3


def test_the_oldest_go_first(desk: Desk) -> None:
    fill(desk, 20)

    desk.call("purge", "normal", "--count", "19")

    assert desk.status("add-normal-none-19") == "queued"


def test_only_what_is_described(desk: Desk) -> None:
    fill(desk, 3, tenant="acme")
    fill(desk, 40, tenant="umbrella")
    fill(desk, 5, task="mail", tenant="acme")

    assert desk.json("purge", "normal", "--tenant", "acme", "--task", "mail", "--count", "5")["purged"] == 5
    found = desk.json("purge", "normal", "--tenant", "umbrella", "--count", "40")

    assert found["purged"] == 40, "those behind the turnstile too"
    assert desk.json("purge", "normal", "--dry-run")["found"] == 3


def test_parked_scheduled_and_deferred_jobs_on_request(desk: Desk) -> None:
    for _ in range(3):
        desk.put(gates="0 concurrency:g|1")
    desk.claim(5)
    desk.put(delay="1h")
    defer(desk, "d1", "d2")

    assert desk.json("purge", "normal", "--dry-run")["found"] == 0
    assert desk.json("purge", "normal", "--parked", "--count", "2")["purged"] == 2
    assert desk.json("purge", "normal", "--scheduled", "--count", "1")["purged"] == 1
    assert desk.json("purge", "normal", "--deferred", "--dry-run")["found"] == 2
    assert desk.json("purge", "backlog", "--count", "2")["purged"] == 2
    assert desk.json("lanes")[0]["depth"] == 0


def test_the_backlogs_of_all_lanes_are_purged_and_nothing_of_the_lanes(desk: Desk) -> None:
    defer(desk, "a")
    defer(desk, "b", lane="bulk")
    stays = desk.put()

    assert desk.json("purge", "backlog", "--count", "2")["purged"] == 2

    assert desk.status(stays) == "queued"
    assert "at gates" in desk.refused("purge", "backlog", "--parked", "--dry-run", code=2)


@pytest.mark.parametrize(
    "arguments", [["Not A Lane"], ["normal", "--task", "no task"], ["normal", "--tenant", "a b"]]
)
def test_what_is_no_name_is_refused(desk: Desk, arguments: list[str]) -> None:
    assert desk.refused("purge", *arguments, "--dry-run", code=2)


def test_a_purge_that_was_interrupted_goes_on_with_the_rest(desk: Desk) -> None:
    fill(desk, 350)
    seen: list[int] = []

    def stop(purged: int, of: int) -> None:
        seen.append(purged)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _purge(desk, 350, stop)
    assert seen == [100, 200]

    assert desk.json("purge", "normal", "--dry-run")["found"] == 150
    assert _purge(desk, 150, lambda purged, of: seen.append(of)).purged == 150
    assert seen[-1] == 150


def test_what_comes_meanwhile_stays(desk: Desk) -> None:
    fill(desk, 150)
    late: list[str] = []

    found = _purge(desk, 160, lambda purged, of: late.append(desk.put()))

    assert found.purged == 150
    assert [desk.status(job_id) for job_id in late] == ["queued"] * len(late)


def _purge(desk: Desk, most: int, progress: Any) -> act.Purged:
    from streamworker.settings import read

    async def run() -> act.Purged:
        queue = Queue(read(desk.namespace, redis_url=desk.url, namespace=desk.namespace))
        try:
            which = act.Selection("normal")
            return await act.purge(queue, which, most, actor="ana@host", progress=progress)
        finally:
            await queue.close()

    return asyncio.run(run())
