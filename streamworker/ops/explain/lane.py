"""The job waits for its turn in its lane."""

from __future__ import annotations

from asyncio import get_running_loop, sleep
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamworker.core.gates import GateKind, words_of
from streamworker.core.text import counted
from streamworker.ops.explain.answer import Answer
from streamworker.ops.explain.scene import Scene, said_by, span
from streamworker.ops.history import iso
from streamworker.store.events import pairs
from streamworker.store.keys import GROUP

#: Entries before the job that are counted at most, and entries of one read.
_COUNTED, _PAGE = 100_000, 10_000


_NONE: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Ahead:
    """Jobs before this one in its stream; `more`: at least so many."""

    count: int
    more: bool = False

    def __str__(self) -> str:
        return f"more than {self.count}" if self.more else str(self.count or "none")

    @property
    def wait(self) -> str:
        """`2 wait`, with the verb that fits."""
        return f"{self} {'waits' if self.count < 2 and not self.more else 'wait'}"


async def ahead(scene: Scene, kind: str) -> Ahead:
    """How many entries of its stream come before the job's and are not delivered."""
    record = scene.record
    assert record.entry is not None
    command = scene.queue.caller.command
    stream = scene.queue.keys.stream(record.lane, kind, record.text("tn") or "")
    entry = record.entry[1]
    start = "-"
    if kind not in ("b", "t"):  # no worker reads those: what is in them is not delivered
        for flat in await command("XINFO", "GROUPS", stream):
            group = pairs(flat)
            if group[b"name"] == GROUP.encode():
                start = f"({group[b'last-delivered-id'].decode()}"
    count = 0
    while count < _COUNTED:
        page = await command("XRANGE", stream, start, f"({entry}", "COUNT", _PAGE)
        count += len(page)
        if len(page) < _PAGE:
            return Ahead(count)
        start = f"({page[-1][0].decode()}"
    return Ahead(count, more=True)


def waited(scene: Scene) -> str:
    """For how long it has been where it is: an entry's id says when it came there."""
    entry = scene.record.entry
    came = scene.record.number("at") if entry is None else int(entry[1].partition("-")[0])
    return span(scene.now - (came or scene.now))


def stopped(scene: Scene, says: Sequence[str] = (), facts: Mapping[str, object] = _NONE) -> Answer | None:
    """Why nothing of its lane is taken at all: a pause, or nobody to take it. `says` is said before that."""
    record = scene.record
    known: dict[str, object] = {
        "lane": record.lane,
        "enqueued_at": iso(record.number("at")),
        **facts,
    }
    pause = scene.pauses.get(f"lane:{record.lane}")
    if pause is not None and pause.state == "paused":
        until = "until somebody resumes it" if pause.until is None else f"until {iso(pause.until)}"
        return Answer(
            "lane_paused",
            [*says, f"Lane {record.lane} is paused {said_by(pause)}, {until}."],
            [f"streamworker resume lane:{record.lane}"],
            {**known, "by": pause.by, "reason": pause.reason},
        )
    if not scene.workers:
        return Answer(
            "no_worker",
            [*says, f"No worker is alive; it has waited for {waited(scene)}."],
            ["streamworker run MODULE:APP"],
            known,
        )
    if not scene.serving(record.lane):
        return Answer(
            "lane_not_served",
            [*says, f"Of {counted(len(scene.workers), 'living worker')} none serves lane {record.lane}."],
            [
                f"streamworker run MODULE:APP --lanes {record.lane}",
                f"deploy workers whose app has the lane {record.lane}, if it is gone from `lanes=`",
                "streamworker workers",
            ],
            known,
        )
    return None


async def answer(scene: Scene, sample: float) -> Answer:
    """Why nobody has taken it yet."""
    record = scene.record
    assert record.entry is not None
    kind, _ = record.entry
    facts: dict[str, object] = {"lane": record.lane, "enqueued_at": iso(record.number("at"))}
    if (stop := stopped(scene)) is not None:
        return stop
    if scene.declared is None and scene.any_manifest:
        return Answer(
            "unknown_task",
            [
                f"No worker has ever published a task {record.task!r}: whoever takes the job hands it back.",
                "Is the name right, and is the deploy out?",
            ],
            [f"deploy workers whose app has {record.task}"],
            facts,
        )
    if (stop := will_park(scene)) is not None:
        return stop
    if record.text("hg"):
        names = (record.text("hg") or "").split()
        facts["granted"] = " ".join(names)
        says = [f"It has passed {' and '.join(names)} and waits for a free slot."]
        if any(not name.startswith(f"{GateKind.ENTITY}:") for name in names):
            says.append("A place that nobody has taken after 5 s goes to the next one.")
        return Answer("granted", says, ["streamworker workers"], facts)
    return await _in_turn(scene, kind, len(scene.serving(record.lane)), facts, sample)


def will_park(scene: Scene, says: Sequence[str] = ()) -> Answer | None:
    """What it will be parked for as soon as a worker looks at it. `says` is what is said before."""
    record = scene.record
    gates = [name for name, _, _ in words_of(record.text("ga") or "")]
    own = [name.removeprefix(f"{GateKind.PAUSE}:") for name in gates if name.startswith(f"{GateKind.PAUSE}:")]
    for scope in (f"task:{record.task}", f"tenant:{record.text('tn')}", *own):
        pause = scene.pauses.get(scope)
        if pause is not None and pause.state == "paused":
            return Answer(
                "paused",
                [*says, f"{scope} is paused {said_by(pause)}; the job will be parked when its turn comes."],
                [f"streamworker resume {scope}"],
                {"scope": scope, "by": pause.by, "reason": pause.reason},
            )
    return None


async def _in_turn(scene: Scene, kind: str, workers: int, facts: dict[str, object], sample: float) -> Answer:
    record = scene.record
    before = await ahead(scene, kind)
    pause = scene.pauses.get(f"lane:{record.lane}")
    facts |= {"ahead": before.count, "workers": workers}
    says = [f"It has waited for its turn in lane {record.lane} for {waited(scene)}; {before} before it."]
    if pause is not None:
        says.append(f"The lane was resumed, and opens little by little until {iso(pause.until)}.")
    if sample > 0:
        rate = await _rate(scene, sample)
        facts["rate"] = round(rate, 2)
        if rate > 0:
            eta = (before.count + 1) / rate
            facts["starts_in_seconds"] = round(eta, 1)
            says.append(
                f"{rate:.3g} jobs a second leave the lane, less those that come back to be tried again: its "
                f"turn may come in {span(eta * 1000)}."
            )
        elif before.count:
            says.append(
                f"Within {sample:g} s no more jobs left the lane than came back: its slots are taken, stand "
                "still, or go to jobs that are tried again."
            )
    return Answer(
        "in_turn" if pause is None else "ramp", says, ["streamworker lanes", "streamworker workers"], facts
    )


async def _rate(scene: Scene, seconds: float) -> float:
    """Jobs that left the lane, less those that came back, a second: what came in, less what it grew by."""
    lane = scene.record.lane
    began, first = get_running_loop().time(), await _counted(scene, lane)
    await sleep(seconds)
    second = await _counted(scene, lane)
    passed = get_running_loop().time() - began
    came, grew = second[0] - first[0], second[1] - first[1]
    return max(0.0, (came - grew) / passed)


async def _counted(scene: Scene, lane: str) -> tuple[int, int]:
    """Jobs that ever came into the lane, and those that wait in it or for their time."""
    stats = pairs(await scene.queue.caller.command("HGETALL", scene.queue.keys.stats))
    came = waiting = 0
    for field, value in stats.items():
        kind, _, rest = field.decode().partition(":")
        if kind == "enqueued" and rest.partition(":")[0] == lane:
            came += int(value)
        elif kind in ("queued", "turned", "parked", "scheduled") and rest == lane:
            waiting += int(value)
    return came, waiting
