"""Rows that cannot be read raise with the Lua file and line, and change nothing (R30)."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Success
from streamworker.store import scripts, settle_rows
from streamworker.store.connection import Argument, ReplyError
from tests.lua.driver import Shard, job

GOOD = job("good").row()
EXTRA = "key\nfp\n1\n2\n3\ntenant\n4\nproducer"


def refused(shard: Shard, call: scripts.Call, message: str) -> None:
    before = shard.look().without_times()

    with pytest.raises(ReplyError, match=message) as caught:
        shard.send(call)

    assert shard.look().without_times() == before, "something was written"
    assert "user_script" not in str(caught.value).partition("script:")[0], "the line of the composed text"


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param("one line", id="one line"),
        pytest.param("\n".join(EXTRA.split("\n")[:-1]), id="a line too few"),
        pytest.param(EXTRA + "\nmore", id="a line too many"),
        pytest.param(EXTRA.replace("1", "soon"), id="a window that is no number"),
        pytest.param(EXTRA.replace("2", "1.5"), id="a delay with a fraction"),
        pytest.param(EXTRA.replace("3", "-3"), id="a deadline before now"),
        pytest.param(EXTRA.replace("4", "x"), id="starts that are no number"),
    ],
)
def test_an_enqueue_row_that_cannot_be_read_is_refused_with_the_whole_batch(shard: Shard, extra: str) -> None:
    rows: list[Argument] = [*GOOD, "bad", "add", "normal", b"env", extra]

    refused(
        shard,
        scripts.enqueue(clock=shard.clock, rows=rows),
        r"lua/fragments/enqueue_step\.lua:\d+: enqueue row cannot be read: bad",
    )


@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_an_enqueue_row_that_is_cut_off_is_refused(shard: Shard, missing: int) -> None:
    rows: list[Argument] = [*GOOD, *job("bad").row()[:-missing]]

    refused(shard, scripts.enqueue(clock=shard.clock, rows=rows), r"lua/fragments/enqueue_step\.lua:\d+: ")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param("X 1 - 5 own returned - - 0 -", id="an unknown kind"),
        pytest.param("S 1 - 5 own returned - - 0", id="a word too few"),
        pytest.param("S 1 - 5 own returned - - 0 - more", id="a word too many"),
        pytest.param("S fence - 5 own returned - - 0 -", id="a fence that is no number"),
        pytest.param("S -1 - 5 own returned - - 0 -", id="a negative fence"),
        pytest.param("", id="nothing"),
        pytest.param("S", id="a letter"),
    ],
)
def test_a_settle_row_that_cannot_be_read_is_refused_with_the_whole_batch(shard: Shard, head: str) -> None:
    claim = shard.take("j")
    rows: list[Argument] = [*settle_rows.outcome_row(claim, Success(), 5), head, "j", b""]

    for call in (shard.settle_call(rows), shard.exchange_call(rows, limit=5)):
        refused(shard, call, r"lua/fragments/settle_step\.lua:\d+: settle row cannot be read: ")

    assert shard.settle(claim, Success()) == "OK"


@pytest.mark.parametrize("missing", [1, 2])
def test_a_settle_row_that_is_cut_off_is_refused(shard: Shard, missing: int) -> None:
    claim = shard.take("j")
    row = settle_rows.outcome_row(claim, Success(), 5)
    rows: list[Argument] = [*row, *row[:-missing]]

    refused(
        shard,
        shard.settle_call(rows),
        r"lua/fragments/settle_step\.lua:\d+: settle row cannot be read: S \d+ ",
    )


@pytest.mark.parametrize(
    ("call", "reply"),
    [
        (scripts.cancel(clock="1", actor="op", retention_ms=1, rows=["j"]), [b"ALREADY queued"]),
        (scripts.replay(clock="1", actor="op", retention_ms=1, rows=["1-1", "j"]), [b"ALREADY"]),
        (scripts.discard(clock="1", actor="op", retention_ms=1, rows=["1-1", "j"]), [b"ALREADY"]),
    ],
    ids=["cancel", "replay", "discard"],
)
def test_an_operators_row_without_its_epoch_names_nothing(
    shard: Shard, call: scripts.Call, reply: list[bytes]
) -> None:
    shard.put("j")
    shard.redis("XADD", shard.keys.dlq, "1-1", "id", "j", "epoch", "0")
    before = shard.look().without_times()

    assert shard.send(call) == reply

    assert shard.look().without_times() == before


def test_an_error_of_redis_itself_names_the_file_as_well(shard: Shard) -> None:
    shard.put("j")
    shard.session()
    shard.redis("SET", shard.keys.stream("broken"), "no stream", "PX", 60_000)

    with pytest.raises(ReplyError, match=r"wrong kind of value.*lua/fragments/claim_step\.lua:\d+"):
        shard.send(shard.claim_call(plan="broken 0 5 0"))

    shard.check("j", status="queued", owner=None)


def test_a_stream_that_is_broken_does_not_lose_what_was_read_before_it(shard: Shard) -> None:
    """Its entries are delivered, and no claim was made: they are offered later."""
    shard.put("j")
    shard.session()
    shard.redis("SET", shard.keys.stream("broken"), "no stream", "PX", 60_000)

    with pytest.raises(ReplyError, match="wrong kind of value"):
        shard.send(shard.claim_call(plan="normal 0 5 0\nbroken 0 5 0"))

    shard.check("j", status="queued", place="a", owner="w1")
    offer = ("normal", "a", shard.record("j").fields["en"].partition(":")[2])
    assert [claim.job_id for claim in shard.claim(offers=[offer])] == ["j"]


@pytest.mark.parametrize("fields", [("id", "unknown"), ("x", "y"), ("id", "j", "env", "other")])
def test_an_entry_that_somebody_else_wrote_is_removed(shard: Shard, fields: tuple[str, ...]) -> None:
    shard.put("j")
    shard.tampered |= {"unknown", "", "j"}
    shard.redis("XADD", shard.keys.stream("normal"), "*", *fields)

    claims = shard.claim()

    assert [claim.job_id for claim in claims] == ["j"]
    assert shard.redis("XLEN", shard.keys.stream("normal")) == 1
