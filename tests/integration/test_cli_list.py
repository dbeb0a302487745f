"""`jobs list`: which jobs it finds, what it says of a listing that was cut, and its bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from streamworker.core.gates import Gate, GateKind
from streamworker.core.outcome import Success
from streamworker.ops import listing
from streamworker.settings import Settings
from streamworker.store.manifest import Declaration, publish_call
from streamworker.store.queue import Queue
from streamworker.store.routing import NO_RULES
from tests.integration.cli_desk import Desk
from tests.servers import BenchServer


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


def ids(desk: Desk, *arguments: str) -> list[str]:
    return [row["id"] for row in desk.json("jobs", "list", *arguments)["items"]]


def test_all_jobs_are_listed_the_newest_first(server: BenchServer, namespace: str, no_leaks: None) -> None:
    with Desk(server.url, namespace) as desk:
        done = desk.put("add", {"a": 1}, tenant="acme")
        (claim,) = desk.claim()
        desk.settle(claim, Success(b"3"))
        waiting = [desk.put("mail", lane="priority") for _ in range(3)]

        found = desk.json("jobs", "list")

    assert [row["id"] for row in found["items"]][-1] == done
    assert {row["id"] for row in found["items"]} == {done, *waiting}
    row = found["items"][-1]
    assert (found["scanned"], found["unreadable"], found["complete"]) == (4, 0, True)
    assert {name: row[name] for name in ("task", "lane", "tenant", "status", "attempt", "error_code")} == {
        "task": "add", "lane": "normal", "tenant": "acme", "status": "succeeded", "attempt": 1,
        "error_code": None,
    }  # fmt: skip
    assert list(row) == [
        "id", "task", "lane", "tenant", "status", "attempt", "error_class", "error_code",
        "enqueued_at", "started_at", "finished_at",
    ]  # fmt: skip
    assert row["enqueued_at"].endswith("Z")


def test_options_narrow_it(desk: Desk) -> None:
    dead = desk.dead("pay", tenant="acme")
    later = desk.put("pay", delay="1h")
    mail = desk.put("mail", lane="priority", tenant="acme")

    assert ids(desk, "--status", "failed_terminal") == [dead]
    assert set(ids(desk, "--status", "queued")) == {later, mail}
    assert set(ids(desk, "--task", "pay")) == {dead, later}
    assert ids(desk, "--lane", "priority") == [mail]
    assert set(ids(desk, "--tenant", "acme")) == {dead, mail}
    assert ids(desk, "--tenant", "acme", "--task", "pay") == [dead]
    assert ids(desk, "--task", "nothing") == []


def test_a_job_is_found_by_its_key(desk: Desk) -> None:
    """What became of order 7? A long key is kept as a digest, of task and entity as well."""
    long = "order:" + "7" * 80
    gates = (Gate(GateKind.ENTITY, "order:{order}"),)
    declared = {"ship": Declaration(lane="normal", arguments=("order",), gates=gates)}
    desk.run(publish_call(declared, NO_RULES), tag=desk.keys.namespace_tag)
    short = desk.dead("pay", key="order:7")
    other = desk.put("mail", key="order:7")
    digest = desk.put("pay", key=long)
    gated = desk.call("enqueue", "ship", '{"order": 7}', "--key", long).stdout.strip()
    desk.put("pay", key="order:77")

    assert set(ids(desk, "--key", "order:7")) == {short, other}
    assert ids(desk, "--key", "order:7", "--task", "pay") == [short]
    assert set(ids(desk, "--key", long)) == {digest, gated}
    assert ids(desk, "--key", "order") == []


def test_a_listing_that_was_cut_says_so(desk: Desk) -> None:
    put = [desk.put() for _ in range(5)]

    found = desk.json("jobs", "list", "--limit", "3")
    shown = desk.call("jobs", "list", "--limit", "3")
    whole = desk.call("jobs", "list", "--limit", "50")

    assert [row["id"] for row in found["items"]] == sorted(put, reverse=True)[:3]
    assert found["complete"] is False
    assert "3 jobs, 5 records looked at; there may be more: narrow it by options, or" in shown.stderr
    assert whole.stderr == "5 jobs, 5 records looked at\n"


def test_the_newest_are_shown_of_more_than_one_step_of_the_scan_finds(desk: Desk) -> None:
    put = [desk.put("add" if number % 2 else "mail") for number in range(1_200)]

    found = desk.json("jobs", "list", "--limit", "2", "--task", "mail")

    assert [row["id"] for row in found["items"]] == sorted(put[::2], reverse=True)[:2]
    assert (found["scanned"], found["complete"]) == (1_200, False)


def test_records_that_cannot_be_read_are_counted(desk: Desk) -> None:
    desk.put()
    desk.redis.set(desk.keys.job(desk.put()), "junk")

    shown = desk.call("jobs", "list")

    assert "1 record cannot be read; see `streamworker doctor`" in shown.stderr
    assert desk.json("jobs", "list")["unreadable"] == 1


def test_what_is_listed_cannot_write_to_the_terminal(desk: Desk) -> None:
    desk.put(tenant="acme")
    record = desk.record(ids(desk)[0])
    assert record is not None
    line = record.line().replace("acme", "\x1b[31mred")
    desk.redis.set(desk.keys.job(record.job_id), line)

    shown = desk.call("jobs", "list")

    assert "\x1b" not in shown.stdout
    assert "\\x1b[31mred" in shown.stdout


def test_an_unknown_state_is_wrong_usage(desk: Desk) -> None:
    said = desk.refused("jobs", "list", "--status", "waiting", code=2)

    assert "'waiting' is not one of 'queued'" in said
    assert "Value error" not in said


@pytest.mark.parametrize("limit", ["0", "many"])
def test_an_impossible_limit_is_wrong_usage(desk: Desk, limit: str) -> None:
    said = desk.refused("jobs", "list", "--limit", limit, code=2)

    assert "--limit" in said
    assert "Input" not in said


def test_a_scan_has_its_bound_and_tells_how_far_it_is(desk: Desk) -> None:
    for _ in range(1_500):
        desk.put()
    told: list[tuple[int, int]] = []

    async def look() -> listing.Listing:
        queue = Queue(Settings(desk.namespace, desk.url))
        try:
            return await listing.list_jobs(
                queue,
                listing.JobFilter(task="nothing"),
                limit=10,
                most=500,
                progress=lambda scanned, found: told.append((scanned, found)),
            )
        finally:
            await queue.close()

    found = asyncio.run(look())

    assert 500 <= found.scanned < 1_500 + 1
    assert not found.complete
    assert told[-1] == (found.scanned, 0)
    assert [scanned for scanned, _ in told] == sorted(scanned for scanned, _ in told)


def test_an_empty_answer_about_a_name_that_nobody_knows_says_so(desk: Desk) -> None:
    """A typing error in --app looked like calm."""
    for command in (("jobs", "list"), ("dlq", "list"), ("dlq", "causes")):
        assert "in nobody; is the name right?" in desk.call(*command, "--app", "nobody").stderr
    desk.put()
    for known in (("jobs", "list", "--task", "none"), ("dlq", "list"), ("dlq", "causes")):
        assert "is the name right?" not in desk.call(*known).stderr
