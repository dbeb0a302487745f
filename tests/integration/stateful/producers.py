"""The steps of producers and operators: enqueue, and enqueue again; cancel, replay, discard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from streamworker.store import scripts
from streamworker.store.placing import enqueue_call
from tests.integration.stateful.bench import LANES
from tests.integration.stateful.machine import RETENTION, Protocol, nth, some, texts
from tests.model import operating, producing
from tests.model.job import Request
from tests.model.merging import FULL, WINDOW_MS

#: What jobs pass, as it travels: each kind, and several of them.
GATES = (
    "0 entity:e:1",
    "0 entity:e:2|strict",
    "0 concurrency:c|1",
    "0 concurrency:d|2",
    "0 rate:r|1,1000,1",
    "0 pause:dependency:x",
    "0 rate:r|1,1000,1 entity:e:1 concurrency:c|1",
    "0 pause:dependency:x entity:e:2|strict concurrency:c|1 concurrency:d|2",
)

requests = st.builds(
    Request,
    job_id=st.just(""),
    lane=st.sampled_from(LANES),
    key=st.sampled_from(("", "k")),
    fingerprint=st.sampled_from(("same", "same", "other")),
    delay_ms=st.sampled_from((0, 0, 0, 0, 0, 0, 5_000, 40_000)),
    deadline_ms=st.sampled_from((0, 0, 0, 20_000)),
    max_starts=st.sampled_from((20, 20, 1)),
    task=st.sampled_from(("add", "add", "mail")),
    tenant=st.sampled_from(("", "", "acme")),
    gates=st.sampled_from(("", "", "0", "0", "1")),  # which of those of the example
    backlog=st.sampled_from(("", "", "", "asked")),
    window=st.sampled_from(("", "", "", "", "collect", "latest")),
    items=st.lists(st.sampled_from(['"x"', '"y"', "1", "22", "[]"]), min_size=1, max_size=3).map(tuple),
)


def new_job(request: Request) -> scripts.NewJob:
    return scripts.NewJob(
        request.job_id,
        request.task,
        request.lane,
        request.envelope,
        key_id=request.key,
        fingerprint=request.fingerprint,
        delay_ms=request.delay_ms,
        deadline_ms=request.deadline_ms,
        max_starts=request.max_starts,
        tenant=request.tenant,
        gates=request.gates,
        backlog=request.backlog,
        coalesce=_window_of(request),
    )


def _window_of(request: Request) -> str:
    """What the script reads of an event's window: mode, name, ms, limit, when, bytes, lengths."""
    if not request.window:
        return ""
    lengths = ",".join(str(len(item)) for item in request.items) if request.window == "collect" else "-"
    return f"{request.window} {request.window_name} {WINDOW_MS} {FULL} always 100000 {lengths}"


class Producers(Protocol):
    """enqueue, and enqueue again."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        #: What the jobs of this example pass: few kinds, so that they meet.
        self.gates: list[str] = list(GATES[:1])

    def arrive(self, batch: list[Request], again: Sequence[Request] = ()) -> None:
        """Enqueue new requests under their names, and some of before."""
        first = len(self.requests) + 1
        named = [
            replace(
                request,
                job_id=f"j{first + i}",
                gates=nth(self.gates, int(request.gates)) if request.gates else "",
                delay_ms=0 if request.window else request.delay_ms,
            )
            for i, request in enumerate(batch)
        ]
        self.requests += named
        replies = self._send_requests([*named, *again])
        self.bench.told.update(each.partition(" ")[0] for each in replies[: len(named)])

    def _send_requests(self, batch: list[Request]) -> list[str]:
        call = enqueue_call([new_job(request) for request in batch])
        call = replace(call, argv=(self.bench.clock, *call.argv[1:]))
        fresh = {request.job_id for request in batch} - self.model.accepted.keys()
        reply = texts(self.run(call))
        self.bench.keep("window:", "collected:", "merged:")
        parked = {name for name in fresh if (one := self.bench.seen.records.get(name)) and one.gate}
        self.confirm(producing.enqueue(self.model, batch, parked=parked), reply)
        return reply

    @rule(batch=st.lists(requests, min_size=1, max_size=4), again=st.lists(some, max_size=2))
    def enqueue(self, batch: list[Request], again: list[int]) -> None:
        """New jobs, and some whose reply was lost; that is safe as long as their record lives (R43)."""
        repeated = [nth(self.requests, pick) for pick in again]
        gone = self.model.accepted.keys() - self.model.jobs.keys()
        self.arrive(batch, [request for request in repeated if request.job_id not in gone])


class Operators(Producers):
    """cancel, replay, discard, and the wait for a result."""

    def __init__(self) -> None:
        super().__init__()
        #: Every dead letter that there ever was: entry, job, epoch.
        self.letters: list[tuple[str, str, int]] = []

    def confirm(self, expected: object = None, reply: object = None) -> None:
        super().confirm(expected, reply)
        known = set(self.letters)
        for (job_id, epoch), letter in self.model.letters.items():
            if (one := (letter.entry, job_id, epoch)) not in known:
                self.letters.append(one)

    @precondition(lambda self: self.model.accepted)
    @rule(
        what=st.sampled_from(("cancel", "await")),
        picks=st.lists(some, min_size=1, max_size=2),
        off=st.integers(0, 1),
    )
    def somebody_asks(self, what: str, picks: list[int], off: int) -> None:
        """For one or two jobs, or one of them twice; `off`: in another epoch than they are."""
        if what == "cancel":
            self._cancel(picks, off)
        else:
            self._await(picks[0], bool(off))

    def _cancel(self, picks: list[int], off: int) -> None:
        jobs = [nth(list(self.model.accepted.values()), pick) for pick in picks]
        epochs = [job.epoch + off if pick % 2 else None for job, pick in zip(jobs, picks, strict=True)]
        named = [(job.id, epoch) for job, epoch in zip(jobs, epochs, strict=True)]
        rows = [word for job_id, epoch in named for word in (job_id, "-" if epoch is None else str(epoch))]
        call = scripts.cancel(clock=self.bench.clock, actor="operator", retention_ms=RETENTION, rows=rows)
        reply = texts(self.run(call))
        self.confirm([operating.cancel(self.model, *one) for one in named], reply)

    def _await(self, pick: int, wait: bool) -> None:
        job_id = nth(sorted(self.model.accepted), pick)
        reply = self.run(scripts.watch(clock=self.bench.clock, job_id=job_id, wait=int(wait)))
        found = reply[0] if isinstance(reply, list) else reply
        self.confirm(producing.watch(self.model, job_id, wait), found.decode())

    @precondition(lambda self: self.letters)
    @rule(
        what=st.sampled_from(("replay", "replay", "discard")),
        picks=st.lists(some, min_size=1, max_size=2),
        off=st.sampled_from((0, 0, 1)),
        rival=st.booleans(),
    )
    def operator_handles_letters(self, what: str, picks: list[int], off: int, rival: bool) -> None:
        """One or two dead letters, or one of them twice, some of which were handled before.

        `rival`: another job has taken the key meanwhile.
        """
        letters = [nth(self.letters, -1 - pick) for pick in picks]
        buried = self.model.accepted[letters[0][1]].request
        if rival and buried.key:
            self.arrive([Request("", buried.lane, key=buried.key, fingerprint=buried.fingerprint)])
        wrapper, predict, task = (
            (scripts.replay, operating.replay, ["-"])
            if what == "replay"
            else (scripts.discard, operating.discard, [])
        )
        rows = [word for entry, job, epoch in letters for word in (entry, job, str(epoch + off), *task)]
        call = wrapper(clock=self.bench.clock, actor="operator", retention_ms=RETENTION, rows=rows)
        reply = texts(self.run(call))
        expected = [predict(self.model, job, epoch + off, epoch) for _, job, epoch in letters]
        if what == "replay":
            self.damaged -= {job for (_, job, _), word in zip(letters, expected, strict=True) if word == "OK"}
        self.confirm(expected, reply)
