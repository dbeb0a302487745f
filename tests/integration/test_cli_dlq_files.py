"""`dlq edit`, `export` and `import`: what is changed, that nothing is lost on the way, what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from streamworker.core import codec
from streamworker.core.errors import ConnectionLost
from streamworker.core.job import Envelope, encode_envelope
from streamworker.core.outcome import Fail
from streamworker.core.states import ErrorClass
from streamworker.ops.dlq import portable
from streamworker.store.manifest import Declaration
from tests.integration.cli_desk import Desk
from tests.integration.test_cli_dlq import at_a_terminal
from tests.integration.test_cli_dlq_replay import publish
from tests.servers import BenchServer


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


def letters(desk: Desk) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in desk.redis.xrange(desk.keys.dlq)]


# --- edit ------------------------------------------------------------------------------------------------


def test_arguments_are_changed_and_the_rest_of_the_letter_is_not(desk: Desk) -> None:
    job_id = desk.dead("pay", {"total": -1, "to": "a"}, key="k", tenant="acme", correlation_id="c")
    (before,) = letters(desk)

    told = desk.json("dlq", "edit", job_id, "--set", "total=99", "--set", 'note="x"')

    (after,) = letters(desk)
    env = Envelope.decode(after.pop(b"env"))
    assert env.args == {"total": 99, "to": "a", "note": "x"}
    assert (env.key, env.tenant, env.correlation_id) == ("k", "acme", "c")
    assert before.items() >= after.items()
    assert told == {"id": job_id, "changes": {"note": [None, "x"], "total": [-1, 99]}}
    desk.call("dlq", "replay", job_id)
    assert Envelope.decode(desk.claim()[0].envelope).args["total"] == 99


def test_an_argument_that_the_task_does_not_take_is_told_of_at_once(desk: Desk) -> None:
    """A deploy may bring it, so the letter is changed; only the replay had told of it."""
    job_id = desk.dead("pay", {"total": -1})
    publish(desk, pay=Declaration("normal", arguments=("total",), required=("total",)))

    told = desk.call("dlq", "edit", job_id, "--set", "ttoal=99")
    fine = desk.call("dlq", "edit", job_id, "--args", '{"total": 99}')

    assert "warning: a replay would be refused: the task takes no 'ttoal'" in told.stderr
    assert "warning" not in fine.stderr


def test_the_command_that_is_named_next_is_one_that_works(desk: Desk) -> None:
    """A letter that failed again after a replay is left alone without --again."""
    job_id = desk.dead("pay", {"total": -1})

    first = desk.call("dlq", "edit", job_id, "--set", "total=98").output
    assert first.strip() == f"1 argument changed; streamworker dlq replay {job_id}"
    desk.call("dlq", "replay", job_id)
    desk.settle(desk.claim()[0], Fail(ErrorClass.PERSISTENT, "bad_total", "again"))
    told = desk.call("dlq", "edit", job_id, "--set", "total=99").output
    explained = desk.json("explain", job_id)

    assert told.strip() == f"1 argument changed; streamworker dlq replay {job_id} --again"
    assert f"streamworker dlq replay {job_id} --again" in json.dumps(explained)
    desk.call("dlq", "replay", job_id, "--again")
    assert Envelope.decode(desk.claim()[0].envelope).args["total"] == 99


def test_the_log_says_what_was_changed(desk: Desk) -> None:
    job_id = desk.dead("pay", {"total": -1})

    desk.call("dlq", "edit", job_id, "--args", '{"total": 2}')

    lines = [fields[b"a"].decode() for _, fields in desk.redis.xrevrange(desk.keys.events, count=1)]
    assert lines == [f'{job_id} 0 edited {{"total":[-1,2]}}']


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set", "total"),
        ("--set", "total=ten"),
        ("--args", "[1]"),
        ("--args", "{"),
        ("--args", '{"total": 1, "to": "a", "total": 2}'),
        ("--set", 'of={"total": 1, "total": 2}'),
        ("--set", f"total={'[' * 100_000}"),
        ("--args", "{}", "--set", "total=1"),
        (),
    ],
)
def test_what_cannot_be_read_changes_nothing(desk: Desk, arguments: tuple[str, ...]) -> None:
    job_id = desk.dead("pay", {"total": -1})
    before = desk.redis.xrange(desk.keys.dlq)

    desk.refused("dlq", "edit", job_id, *arguments, code=2)

    assert desk.redis.xrange(desk.keys.dlq) == before


def sent_as(desk: Desk, args: dict[str, Any], **more: Any) -> str:
    """A dead job whose producer sent something else than the desk does."""
    job_id = desk.dead("pay", {"total": -1})
    ((letter, fields),) = desk.redis.xrange(desk.keys.dlq)
    envelope = encode_envelope("pay", codec.encode_args(args, limit=1_000_000), **more)
    desk.redis.xdel(desk.keys.dlq, letter)
    desk.redis.xadd(desk.keys.dlq, fields | {b"env": envelope})
    return job_id


def test_what_a_lane_has_taken_can_be_edited_however_large_it_is(desk: Desk) -> None:
    """Its lane takes more than others do, and the letter could not be changed at all."""
    job_id = sent_as(desk, {"total": -1, "rows": "x" * 300_000})

    desk.call("dlq", "edit", job_id, "--set", "total=1")

    assert Envelope.decode(letters(desk)[0][b"env"]).args["total"] == 1
    said = desk.refused("dlq", "edit", job_id, "--set", f"more={'9' * 17}", code=2)
    assert "the limit is 3000" in said, "what it has, since nobody has said that the lane takes more"


def test_an_edited_letter_keeps_its_place_in_the_trace(desk: Desk) -> None:
    job_id = sent_as(desk, {"total": -1}, trace="00-1-2-01")

    desk.call("dlq", "edit", job_id, "--set", "total=1")

    assert Envelope.decode(letters(desk)[0][b"env"]).trace == "00-1-2-01"


def test_an_edit_that_changes_nothing_says_so(desk: Desk) -> None:
    job_id = desk.dead("pay", {"total": -1})

    assert "already so" in desk.refused("dlq", "edit", job_id, "--set", "total=-1")
    assert "has no dead letter" in desk.refused("dlq", "edit", desk.put(), "--set", "total=1")


def test_at_a_terminal_the_editor_is_opened(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = desk.dead("pay", {"total": -1})
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/-1/7/" "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)

    code, seen = at_a_terminal(desk, "dlq", "edit", job_id, answer="y\n")

    assert code == 0, seen
    assert "total: -1 -> 7" in seen
    assert Envelope.decode(letters(desk)[0][b"env"]).args == {"total": 7}


def misspelt(desk: Desk, count: int = 5) -> list[str]:
    """Dead letters of a producer that wrote `totl`; one of them has the right name."""
    publish(desk, pay=Declaration("normal", arguments=("total", "to"), required=("total",)))
    ids = [desk.dead("pay", {"totl": n}, key=f"k{n}") for n in range(count - 1)]
    return [*ids, desk.dead("pay", {"total": 9})]


def args_of(desk: Desk) -> dict[str, dict[str, Any]]:
    return {fields[b"id"].decode(): Envelope.decode(fields[b"env"]).args for fields in letters(desk)}


def test_many_letters_get_the_same_change_and_the_log_says_who_and_why(desk: Desk) -> None:
    *ids, right = misspelt(desk)
    other = desk.dead("mail", {"totl": 1})

    tried = desk.call("dlq", "edit", "--task", "pay", "--rename", "totl=total", "--dry-run")
    assert tried.stdout == "4 could be edited\n"
    assert tried.stderr.splitlines()[:2] == [f"such as {ids[0]}:", "total: (none) -> 0"]
    assert args_of(desk)[ids[0]] == {"totl": 0}
    change = ("dlq", "edit", "--task", "pay", "--rename", "totl=total", "--set", 'to="a"', "--reason", "typo")
    told = desk.json(*change, "--yes")
    again = desk.json(*change, "--yes")

    assert told == {"eligible": 5, "edited": 5, "skipped": []}
    assert args_of(desk) == {
        **{job_id: {"total": n, "to": "a"} for n, job_id in enumerate(ids)},
        right: {"total": 9, "to": "a"},
        other: {"totl": 1},
    }
    assert again["edited"] == 0
    assert {each["reason"] for each in again["skipped"]} == {"unchanged"}
    lines = [fields[b"a"].decode() for _, fields in desk.redis.xrevrange(desk.keys.events, count=2)]
    assert any(
        f'{ids[0]} 0 edited {{"to":[null,"a"],"total":[null,0],"totl":[0,null]}}' in one for one in lines
    )
    assert any("dlq:edit" in one and "typo" in one for one in lines)
    assert desk.json("dlq", "replay", "--task", "pay", "--yes")["replayed"] == 5


def test_of_many_those_that_a_replay_would_refuse_are_left_alone(desk: Desk) -> None:
    *ids, right = misspelt(desk, 3)
    before = args_of(desk)

    told = desk.json("dlq", "edit", *ids, right, "--set", "note=1", "--drop", "totl", "--yes", code=1)
    both = desk.json("dlq", "edit", *ids, right, "--rename", "total=totl", "--yes", code=1)

    assert args_of(desk) == before
    assert [each["reason"] for each in told["skipped"]] == ["bad_arguments"] * 3
    assert [each["reason"] for each in both["skipped"]] == ["unchanged", "unchanged", "bad_arguments"]


def test_many_letters_are_not_changed_without_being_asked_for(desk: Desk) -> None:
    misspelt(desk, 3)
    before = args_of(desk)

    assert "add --yes" in desk.refused("dlq", "edit", "--task", "pay", "--set", "total=1", code=2)
    assert "add --count 2" in desk.call("dlq", "edit", "--all", "--rename", "totl=total", code=2).stderr
    assert "say how" in desk.refused("dlq", "edit", "--task", "pay", "--args", "{}", code=2)
    assert "OLD=NEW" in desk.refused("dlq", "edit", "--task", "pay", "--rename", "totl", code=2)

    assert args_of(desk) == before


def test_one_letter_can_be_tried_first(desk: Desk) -> None:
    job_id = desk.dead("pay", {"totl": -1})

    tried = desk.call("dlq", "edit", job_id, "--rename", "totl=total", "--dry-run")

    assert tried.stderr.splitlines() == [
        "total: (none) -> -1",
        "totl: -1 -> (none)",
        "2 arguments would be changed",
    ]
    assert args_of(desk) == {job_id: {"totl": -1}}


# --- export and import -----------------------------------------------------------------------------------


def test_letters_go_into_a_file_and_come_back_as_they_were(desk: Desk, tmp_path: Path) -> None:
    ids = [desk.dead("pay", {"n": n, "text": "\x1b[1m ä"}, key=f"k{n}", tenant="acme") for n in range(120)]
    before = letters(desk)
    file = tmp_path / "letters.jsonl"
    desk.call("dlq", "export", "--all", "--file", str(file))
    desk.call("dlq", "discard", "--task", "pay", "--yes")
    desk.forget(ids[0])
    assert letters(desk) == []

    told = desk.json("dlq", "import", str(file))
    again = desk.call("dlq", "import", str(file)).stderr.splitlines()

    assert told == {"imported": 120, "skipped": []}
    assert letters(desk) == before
    assert desk.json("top", "--once")["dead_letters"]["total"] == 120, "they are counted again"
    assert len(again) == 21
    assert again[-1] == "skipped 120 in all; --json lists them"
    assert desk.json("dlq", "replay", "--task", "pay", "--yes", "--rate", "9999")["replayed"] == 120


def test_a_binary_envelope_comes_through(desk: Desk, tmp_path: Path) -> None:
    job_id = desk.dead()
    (letter,) = desk.redis.xrange(desk.keys.dlq)
    desk.redis.delete(desk.keys.dlq)
    desk.redis.xadd(desk.keys.dlq, {**letter[1], b"env": b"\xff\x00{"})
    exported = desk.call("dlq", "export", job_id).stdout
    desk.redis.delete(desk.keys.dlq)
    desk.forget(job_id)

    desk.call("dlq", "import", "-", stdin=exported)

    assert letters(desk)[0][b"env"] == b"\xff\x00{"


@pytest.mark.parametrize("readable", [True, False])
def test_a_letter_of_a_record_that_could_not_be_read_comes_back_whole(desk: Desk, readable: bool) -> None:
    job_id = desk.dead("pay")
    (letter,) = desk.redis.xrange(desk.keys.dlq)
    desk.redis.delete(desk.keys.dlq)
    changed = {b"task": b"", b"code": b"bad_record"} | ({} if readable else {b"env": b"{"})
    desk.redis.xadd(desk.keys.dlq, {**letter[1], **changed})
    exported = desk.call("dlq", "export", job_id).stdout
    desk.redis.delete(desk.keys.dlq)
    desk.forget(job_id)

    desk.call("dlq", "import", "-", stdin=exported)

    assert desk.json("jobs", "show", job_id)["status"] == "failed_terminal"
    told = desk.json("dlq", "replay", job_id, code=0 if readable else 1)
    assert told["replayed"] == readable
    if readable:
        assert Envelope.decode(desk.claim()[0].envelope).task == "pay"


@pytest.mark.parametrize(
    "strange",
    [{b"foo": b"bar"}, {b"\xff": b"\xff"}, {b"attempt": b"two", b"at": b"-"}, {b"dead_at": b"9" * 18}],
    ids=["other names", "no text", "no numbers", "after the year 9999"],
)
def test_an_entry_that_somebody_else_wrote_hides_no_letter(desk: Desk, strange: dict[bytes, bytes]) -> None:
    job_id = desk.dead("pay")
    desk.redis.xadd(desk.keys.dlq, strange)

    assert desk.json("dlq", "list")["items"][-1]["id"] == job_id
    assert [cause["task"] for cause in desk.json("dlq", "causes")["causes"]] == ["", "pay"]
    assert desk.json("dlq", "replay", "--task", "pay", "--yes")["replayed"] == 1


def test_only_what_is_meant_is_exported(desk: Desk) -> None:
    desk.dead("a")
    wanted = desk.dead("b")

    *lines, end = desk.call("dlq", "export", "--task", "b").stdout.splitlines()

    assert [json.loads(line)["id"] for line in lines] == [wanted]
    assert json.loads(end) == {"format": portable.END, "letters": 1}


def test_an_export_that_was_cut_is_told_from_a_whole_one(desk: Desk) -> None:
    ids = [desk.dead("a"), desk.dead("a")]
    first, second, end = desk.call("dlq", "export", "--all").stdout.splitlines()
    desk.call("dlq", "discard", *ids, "--yes")

    for cut in (
        f"{first}\n{end}\n",
        f"{first}\n{second}\n{second}\n{end}",
        f"{end}\n",
        f"{first}\n{second[:99]}",
    ):
        desk.refused("dlq", "import", "-", stdin=cut)
    said = desk.refused("dlq", "import", "-", stdin=f"{first}\n{end}\n{second}\n")
    assert said.startswith("line 2 says that 2 letters are before it, and there is 1: ")
    assert letters(desk) == []
    # Whole ones one after the other are a whole one; a line's end that was lost is no letter's.
    twice = desk.call("dlq", "import", "-", stdin=f"{first}\n{second}\n{end}\n\n{first}\n{second}\n{end}")
    assert "note:" not in twice.stderr
    assert len(letters(desk)) == 2
    for old in (first, f"{first}\n{second}\n", f"{first}\n{second}\n{end}\n{first}\n", ""):
        told = desk.call("dlq", "import", "-", stdin=old)
        assert "note: the end of an export is missing" in told.stderr


def test_a_file_is_replaced_by_a_whole_export_or_not_at_all(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.dead("a")
    file, link = tmp_path / "letters.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(file)
    file.write_text("what was exported before\n")
    file.chmod(0o600)

    desk.refused("dlq", "export", "--all", "-f", str(file), "--redis-url", "redis://127.0.0.1:1/0")
    assert file.read_text() == "what was exported before\n"
    with monkeypatch.context() as away:
        away.setattr(portable, "_line", Mock(side_effect=[b"one\n", ConnectionLost("in the middle")]))
        desk.dead("b")
        desk.refused("dlq", "export", "--all", "--file", str(file))
    assert file.read_text() == "what was exported before\n"
    assert sorted(tmp_path.iterdir()) == [file, link]
    desk.call("dlq", "export", "--all", "--file", str(link))

    assert len(file.read_text().splitlines()) == 3
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600
    desk.call("dlq", "export", "--all", "--file", os.devnull)


def test_nobody_is_brought_back_beside_himself(desk: Desk, tmp_path: Path) -> None:
    dead, replayed = desk.dead("a"), desk.dead("a")
    file = tmp_path / "letters.jsonl"
    desk.call("dlq", "export", "--all", "--file", str(file))
    desk.call("dlq", "replay", replayed)

    told = desk.json("dlq", "import", str(file))

    assert told["imported"] == 0
    assert {each["id"]: each["reason"] for each in told["skipped"]} == {dead: "already", replayed: "alive"}


def broken(line: dict[str, Any]) -> list[str]:
    """Lines of which none is a letter."""
    return [
        "{",
        "[]",
        json.dumps({**line, "format": "other"}),
        json.dumps({**line, "id": "x"}),
        json.dumps({**line, "epoch": "one"}),
        json.dumps({**line, "surprise": "x"}),
        json.dumps({**line, "env": 1}),
        json.dumps({name: value for name, value in line.items() if name != "env"}),
        # Edited by hand: each of them made the list of all letters, or the job's record, unreadable.
        json.dumps({**line, "dead_at": "9" * 18}),
        json.dumps({**line, "at": "9" * 5000}),
        json.dumps({**line, "version": str(2**53)}),
        json.dumps({**line, "epoch": "007"}),
        json.dumps({**line, "attempt": "-1"}),
        json.dumps({**line, "lane": "no such"}),
        json.dumps({**line, "lane": "normal:quarantine"}),
        json.dumps({**line, "task": "two words"}),
        json.dumps({**line, "tenant": "two\nlines=1"}),
        json.dumps({**line, "class": "bad luck"}),
        json.dumps({**line, "code": "two words"}),
        json.dumps({**line, "ky": "a\nst=x"}),
        json.dumps({**line, "kf": "a b"}),
        json.dumps({**line, "kw": "soon"}),
        json.dumps({**line, "ms": "-"}),
        json.dumps({**line, "ga": "1 entity:a\ndl=7"}),
    ]


def test_a_file_with_one_bad_line_changes_nothing(desk: Desk) -> None:
    job_id = desk.dead("a")
    good = desk.call("dlq", "export", job_id).stdout.splitlines()[0]
    desk.call("dlq", "discard", job_id)

    for bad in broken(json.loads(good)):
        said = desk.refused("dlq", "import", "-", stdin=f"{good}\n\n{bad}\n")

        assert said.startswith("line 3 is no exported dead letter: ")
    assert letters(desk) == []
    assert "No such file" in desk.refused("dlq", "import", "nowhere.jsonl")
