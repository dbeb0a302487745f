"""Which dead letters are meant: filters, causes, and what has to be said before all of them move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cli_desk import Desk
from tests.servers import BenchServer


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


def notes(desk: Desk) -> list[str]:
    """The audit's lines about many letters at once, the newest first."""
    entries = desk.redis.xrevrange(desk.keys.events)
    lines = [line for _, fields in entries for line in fields.get(b"a", b"").decode().split("\n")]
    return [line for line in lines if line.startswith("- 0 note ")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--class", "persistent"), {0, 1, 2}),
        (("--class", "unknown"), set()),
        (("--correlation-id", "c-1"), {1}),
        (("--entity", "order:7"), {2}),
        (("--text", "TOTAL IS"), {0, 1, 2}),
        (("--text", "acme gmbh"), {1}),
        (("--newer", "1h"), {0, 1, 2}),
        (("--older", "1h"), set()),
        (("--older", "0s", "--newer", "1h", "--task", "b"), {1}),
    ],
)
def test_letters_can_be_described(desk: Desk, options: tuple[str, ...], expected: set[int]) -> None:
    ids = [
        desk.dead("a"),
        desk.dead("b", {"who": "Acme GmbH"}, correlation_id="c-1"),
        desk.dead("a", gates="0 entity:order:7"),
    ]

    listed = desk.json("dlq", "list", *options)

    assert {ids.index(item["id"]) for item in listed["items"]} == expected


def test_a_time_that_is_none_changes_nothing(desk: Desk) -> None:
    job_id = desk.dead()

    assert "--older: 'yesterday' is no duration" in desk.refused(
        "dlq", "discard", "--older", "yesterday", "--yes", code=2
    )
    assert desk.letters() == [job_id]


def test_causes_count_what_died_of_the_same(desk: Desk) -> None:
    ids = [desk.dead("pay", code="http_503", error=f"503 no {number}") for number in range(4)]
    other = desk.dead("pay", lane="priority")

    found = desk.json("dlq", "causes")
    shown = desk.call("dlq", "causes", "--task", "pay")

    first, second = found["causes"]
    assert found["total"] == 5
    assert (first["task"], first["error_class"], first["error_code"]) == ("pay", "persistent", "http_503")
    assert (first["count"], first["samples"], first["error"]) == (4, ids[:0:-1], "503 no 3")
    assert first["oldest"] <= first["newest"]
    assert (second["count"], second["samples"], second["lanes"]) == (1, [other], ["priority"])
    assert shown.stderr == "5 dead letters, 2 causes\n"


def test_show_tells_how_it_came_about(desk: Desk) -> None:
    job_id = desk.dead("invoice", {"n": 1})

    shown = desk.json("dlq", "show", job_id)

    assert [move["to"] for move in shown["history"]] == ["queued", "claimed", "processing", "failed_terminal"]
    assert shown["history_complete"] is True
    assert "failed_terminal" in desk.call("dlq", "show", job_id).stdout


def test_one_audit_line_tells_of_all_that_moved(desk: Desk) -> None:
    for _ in range(3):
        desk.dead("pay")

    desk.call(
        "dlq", "replay", "--task", "pay", "--text", "total is", "--yes", "--reason", "the gateway  is\nback"
    )

    assert notes(desk) == [
        "- 0 note dlq:replay task=pay;text=total%20is;eligible=3;rate=200 the gateway is back"
    ]


def test_what_moves_nothing_leaves_no_audit_line(desk: Desk) -> None:
    desk.dead()

    desk.call("dlq", "replay", "--task", "other", "--yes")
    desk.call("dlq", "discard", "--task", "add", "--dry-run")

    assert notes(desk) == []


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_all_of_them_need_their_number(desk: Desk, verb: str) -> None:
    ids = [desk.dead("a"), desk.dead("b")]

    assert "add --count 2" in desk.refused("dlq", verb, "--all", "--yes", code=2)
    assert "there are 2" in desk.refused("dlq", verb, "--all", "--count", "3")
    assert desk.letters() == ids
    assert desk.json("dlq", verb, "--all", "--count", "2")["eligible"] == 2
    assert desk.letters() == []


@pytest.mark.parametrize(
    "arguments", [(), ("--all", "--task", "a"), ("--task", "a", "--count", "1"), ("--count", "1")]
)
def test_letters_are_named_in_one_way(desk: Desk, arguments: tuple[str, ...]) -> None:
    job_id = desk.dead("a")

    desk.refused("dlq", "discard", *arguments, code=2)

    assert desk.letters() == [job_id]


def test_the_options_of_a_replay_are_checked_first(desk: Desk) -> None:
    job_id = desk.dead("a")
    wrong: list[Any] = [("--rate", "0"), ("--rate", "nan"), ("--stop-at", "2"), ("--stop-at", "-1")]

    for option, value in wrong:
        desk.refused("dlq", "replay", job_id, option, value, code=2)

    assert desk.letters() == [job_id]
