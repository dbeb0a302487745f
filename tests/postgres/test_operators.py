"""What operators had set and dead letters of which nobody has decided come back after a loss (D19)."""

from __future__ import annotations

import pytest

from streamworker.ops import breakers, dlq, overload, retries, slots, tune, undo
from streamworker.postgres.operators import last_words, read_setting
from tests.apps import mirror_jobs
from tests.postgres.stage import PATIENCE, Stage
from tests.waiting import wait_until_async

ANN = "ann@ops"
NOON = 1_784_894_400_000


@pytest.mark.parametrize(
    ("verb", "detail", "after_ms", "left"),
    [
        ("pause", "- the carrier is down", 5000, "pause x - restored, set by ann@ops: the carrier is down"),
        ("pause", "60000 for a minute", 5000, "pause x 55000 restored, set by ann@ops: for a minute"),
        ("pause", "60000 for a minute", 60_000, None),
        ("pause", "- restored, set by bob: again", 0, "pause x - restored, set by bob: again"),
        ("resume", "60000 -", 0, None),
        ("limit", "5,1000,5 -", 0, "limit x 5,1000,5 restored, set by ann@ops: -"),
        (
            "throttle",
            "5,1000,5 backlog noisy",
            0,
            "throttle x 5,1000,5 backlog restored, set by ann@ops: noisy",
        ),
        ("throttle", "- quiet again", 0, None),
        ("drain", "on - back", 0, "drain x on - restored, set by ann@ops: back"),
        ("drain", "- as declared", 0, None),
        ("open", "0 0 sick", 0, "open x 0 0 restored, set by ann@ops: sick"),
        ("open", "9000 0 sick", 4000, "open x 5000 0 restored, set by ann@ops: sick"),
        ("close", "9000 60000 well", 9000, None),
        ("slots", "4,2 late", 0, "slots x 4,2 restored, set by ann@ops: late"),
        ("slots", "-,2;for=9000 late", 4000, "slots x -,2;for=5000 restored, set by ann@ops: late"),
        ("slots", "- enough", 0, None),
        (
            "retries",
            "multiply=3.0,stop=a+b calm",
            0,
            "retries x multiply=3.0,stop=a+b restored, set by ann@ops: calm",
        ),
        ("limit", "5,1000,5;for=9000 hot", 8999, "limit x 5,1000,5;for=1 restored, set by ann@ops: hot"),
        ("limit", "5,1000,5;for=9000 hot", 9000, None),
        ("limit", "5,1000,5 for;for=1 fun", 9000, "limit x 5,1000,5 restored, set by ann@ops: for;for=1 fun"),
        (
            "throttle",
            "5,1000,5 reject;for=9000 hot",
            1000,
            "throttle x 5,1000,5 reject;for=8000 restored, set by ann@ops: hot",
        ),
        ("drain", "off -;for=9000 hot", 9001, None),
    ],
)
def test_a_setting_holds_for_what_is_left_of_its_time(
    verb: str, detail: str, after_ms: int, left: str | None
) -> None:
    found = read_setting(verb, "x", detail, actor=ANN, at_ms=NOON, now_ms=NOON + after_ms)

    assert (None if found is None else f"{found} {found.reason}") == left


def holding(*actions: tuple[int, str, str], after_ms: int = 0) -> list[str]:
    """What holds of actions about one subject: ms after noon, verb, detail."""
    rows = [(NOON + at_ms, ANN, verb, "x", detail) for at_ms, verb, detail in actions]
    return [str(each) for each in last_words(rows, now_ms=NOON + after_ms)]


def test_what_holds_for_good_comes_before_what_holds_for_a_time_and_outlives_it() -> None:
    actions = [
        (0, "limit", "9,1000,9 -"),
        (1, "limit", "5,1000,5;for=50 -"),
        (2, "limit", "6,1000,6;for=100 -"),
    ]

    assert holding(*actions, after_ms=52) == ["limit x 9,1000,9", "limit x 6,1000,6;for=50"]
    assert holding(*actions, after_ms=102) == ["limit x 9,1000,9"]
    assert holding(*actions, (3, "limit", "7,1000,7 -")) == ["limit x 7,1000,7"]
    assert holding(*actions, (3, "reset", "- -")) == []


def test_what_is_not_understood_keeps_nothing_else_from_being_set_again() -> None:
    assert holding((0, "limit", "9,1000,9 -"), (1, "pause", "soon -")) == ["limit x 9,1000,9"]


def test_a_time_of_its_own_and_nothing_below() -> None:
    assert holding((0, "slots", "4,2;for=50 -"), after_ms=10) == ["slots x 4,2;for=40"]
    assert holding((0, "slots", "4,2 -"), (1, "slots", "- -")) == []
    assert holding((0, "pause", "50 -"), (1, "pause", "- for;for=5 -")) == ["pause x -"]


@pytest.mark.timeout(PATIENCE * 3)
async def test_settings_and_dead_letters_come_back_as_they_were(stage: Stage) -> None:
    queue = stage.queue
    mirror = stage.mirror_that_is_on()
    worker = stage.worker()
    dead = await stage.queue.enqueuer.place([mirror_jobs.bad.call(number).job for number in range(6)])
    ids = [each.job_id for each in dead]
    await wait_until_async(stage.settled, timeout=PATIENCE, what="they are dead, and mirrored")
    worker.terminate()
    worker.wait()
    await dlq.discard(queue, ids[:2], actor=ANN)
    await dlq.replay(queue, ids[2:3], actor=ANN)
    await tune.pause(queue, "task:bad", actor=ANN, reason="not now")
    await tune.pause(queue, "lane:backlog", actor=ANN)
    await tune.resume(queue, "lane:backlog", actor=ANN)
    await tune.set_limit(queue, "rate:r", tune.figures_of("rate:r", "5/s"), actor=ANN)
    await tune.set_limit(queue, "rate:gone", tune.figures_of("rate:gone", "5/s"), actor=ANN)
    await tune.reset_limit(queue, "rate:gone", actor=ANN)
    await overload.set_throttle(queue, "tenant:acme", "5/s", actor=ANN)
    await overload.set_drain(queue, actor=ANN, on=False)
    await breakers.force_open(queue, "carrier", actor=ANN)
    await slots.set_slots(queue, "normal", weight=7, actor=ANN)
    await slots.set_slots(queue, "normal", weight=9, actor=ANN, duration="1h")
    await retries.set_retries(queue, "bad", multiply=3, stop=["gone"], actor=ANN, reason="calm")
    await retries.set_retries(queue, "good", multiply=2, actor=ANN)
    await undo.undo(queue, actor=ANN)
    before = [letter.json() async for letter in dlq.letters(queue)]
    await wait_until_async(lambda: unread_is(stage, 0), timeout=PATIENCE, what="the log is mirrored")

    await queue.caller.command("FLUSHALL")
    mirror.wait_for_log("8 settings of operators set again", timeout=PATIENCE)
    mirror.wait_for_log("3 dead letters brought back", timeout=PATIENCE)

    after = [letter.json() async for letter in dlq.letters(queue)]
    assert sorted(letter["id"] for letter in after) == sorted(ids[3:])
    assert by_id(after) == by_id(before)
    (pause,) = await tune.pauses(queue)
    assert (pause.scope, pause.state, pause.until) == ("task:bad", "paused", None)
    assert pause.reason == "restored, set by ann@ops: not now"
    assert [each["name"] for each in await tune.limits(queue) if each["set"]] == ["rate:r"]
    assert [each.scope for each in await overload.throttles(queue)] == ["tenant:acme"]
    assert not (await overload.drain(queue)).on
    assert [one.state for one in (await breakers.standings(queue)).values()] == ["open"]
    assert [one.task for one in await retries.retries(queue)] == ["bad"], "an undo is the last word too"
    assert (await retries.retries(queue))[0].set.reason == "restored, set by ann@ops: calm"
    shares = {one.lane: one.set for one in await slots.slots(queue)}["normal"]
    assert shares is not None
    assert (shares.value, shares.until is None) == ("-,9", False)
    assert shares.below is not None
    assert shares.below.value == "-,7"
    assert (await queue.record(ids[2])).status == "queued", "its replay was mirrored"

    moved = await dlq.replay(queue, ids[3:4], actor=ANN)
    assert moved.moved == 1


@pytest.mark.timeout(PATIENCE * 2)
async def test_workers_declare_again_what_redis_lost(stage: Stage) -> None:
    command, keys = stage.queue.caller.command, stage.queue.keys
    stage.mirror_that_is_on()
    stage.worker().wait_for_log("slots, lanes")
    meta, lanes = await command("HGETALL", keys.meta), await command("HGET", keys.policies, "lanes")

    await command("FLUSHALL")

    async def declared() -> bool:
        found = await command("HGET", keys.policies, "lanes")
        return found == lanes and bool(await command("HGET", keys.meta, "task:good"))

    await wait_until_async(declared, timeout=PATIENCE, what="tasks and lanes are known again")
    names = {name for name in meta[::2] if name.startswith(b"task:")} | {b"schema", b"shards"}
    assert names <= set(await command("HKEYS", keys.meta))


async def unread_is(stage: Stage, count: int) -> bool:
    return await stage.unread() == count


def by_id(letters: list[dict[str, object]]) -> dict[object, object]:
    """What a letter says, but for its place in the stream."""
    return {
        letter["id"]: {name: value for name, value in letter.items() if name != "letter"}
        for letter in letters
    }
