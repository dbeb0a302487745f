"""Jobs and runs made up by hand, for the tests of the judge."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from streamworker.core.job import Record
from streamworker.core.states import Status
from streamworker.store.events import Transition
from tests.chaos.history import Accepted, End, Fault, FaultKind, Final, History, Limits, Start, Told
from tests.chaos.rules import MOVES

#: When a made-up job is enqueued, in seconds; each edge comes a second later.
T0 = 1000.0
LIMITS = Limits(lease=2.0, margin=0.0, attempts={"t": 3}, starts={"t": 4})
ONCE = "claimed processing succeeded:returned"
TWICE = "claimed processing retry_scheduled:error claimed processing succeeded:returned"
#: Worker `a` dies with the job in its hands, and `b` runs it.
DIED = "claimed@a processing retry_scheduled:recovered claimed@b processing succeeded:returned"
KILL = Fault(FaultKind.KILL, T0 + 2.5, worker="a")


class Story:
    """A made-up job: `state[:reason][@worker]` for each edge after the enqueue, a second apart.

    Each claim has the fence 10, 20 …, its handler starts with `processing` and ends just before an outcome.
    """

    def __init__(
        self, path: str = ONCE, *, job: str = "j", task: str = "t", at: float = T0, holds: str = ""
    ) -> None:
        """`holds`: names of the gates by which its handlers run."""
        self.job = job
        self.edges = [
            self._edge(None, Status.QUEUED, at, 0, 0, "enqueued", None, 1, {"task": task, "lane": "normal"})
        ]
        self.starts: list[Start] = []
        self.ends: list[End] = []
        attempt, fence, worker = 0, 0, "a"
        for version, word in enumerate(path.split(), 2):
            word, _, who = word.partition("@")
            name, _, reason = word.partition(":")
            status, before, at = Status(name), self.edges[-1].to_status, at + 1.0
            worker = who or worker
            if status is Status.CLAIMED:
                attempt, fence = attempt + 1, fence + 10
            if (status is Status.QUEUED and reason not in MOVES) or (
                reason == "recovered" and before is Status.CLAIMED
            ):
                attempt -= 1
            if status is Status.PROCESSING:
                self.starts.append(Start(job, attempt, fence, worker, at, tuple(holds.split())))
            if before is Status.PROCESSING and reason in ("returned", "error"):
                told = Told.RETURNED if reason == "returned" else Told.RAISED
                self.ends.append(End(job, fence, worker, at - 0.1, told))
            facts = {"code": "worker_lost"} if status is Status.FAILED_TERMINAL else {}
            reason = reason or str(status)
            self.edges.append(self._edge(before, status, at, attempt, fence, reason, worker, version, facts))

    def _edge(
        self,
        before: Status | None,
        after: Status,
        at: float,
        attempt: int,
        fence: int,
        reason: str,
        worker: str | None,
        version: int,
        facts: dict[str, str],
    ) -> Transition:
        at_ms = round(at * 1000)
        return Transition(
            self.job, 0, version, before, after, at_ms, attempt, fence, reason, worker, "settle", facts
        )

    def change(self, number: int, /, **changes: object) -> Story:
        self.edges[number - 1] = self.edges[number - 1]._replace(**changes)  # type: ignore[arg-type]
        return self

    def record(self, **changes: int) -> Record:
        last = self.edges[-1]
        starts = sum(edge.to_status is Status.CLAIMED for edge in self.edges)
        record = Record(
            self.job,
            last.to_status,
            last.attempt,
            starts,
            0,
            last.version,
            last.epoch,
            0,
            0,
            {"la": "normal"},
        )
        return replace(record, **changes)  # type: ignore[arg-type]


def run(*stories: Story, **parts: object) -> History:
    """A history of these jobs, all of them accepted."""
    edges: list[tuple[int, Transition]] = []
    for story in stories:  # each in its own order, whatever the times of its edges
        moments = accumulate((edge.at_ms for edge in story.edges), max)
        edges += zip(moments, story.edges, strict=True)
    edges.sort(key=lambda each: each[0])
    history = History(
        LIMITS,
        accepted=[Accepted(story.job, "t", "normal") for story in stories],
        starts=[start for story in stories for start in story.starts],
        ends=[end for story in stories for end in story.ends],
        transitions=[edge for _, edge in edges],
        final=Final(),
    )
    letters = [story.job for story in stories if story.edges[-1].to_status is Status.FAILED_TERMINAL]
    history = replace(history, final=Final(dead_letters=letters))
    return replace(history, **parts)  # type: ignore[arg-type]
