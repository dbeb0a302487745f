"""The steps of producers and operators: enqueue, and enqueue again; cancel, replay, discard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from streamworker.store import scripts
from tests.integration.stateful.bench import LANES
from tests.integration.stateful.machine import RETENTION, Protocol, nth, some, texts
from tests.model import operating, producing
from tests.model.job import Request

requests = st.builds(
    Request,
    job_id=st.just(""),
    lane=st.sampled_from(LANES),
    key=st.sampled_from(("", "k")),
    fingerprint=st.sampled_from(("same", "same", "other")),
    delay_ms=st.sampled_from((0, 0, 0, 0, 0, 0, 5_000, 40_000)),
    deadline_ms=st.sampled_from((0, 0, 0, 20_000)),
    max_starts=st.sampled_from((20, 20, 1)),
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
    )


class Producers(Protocol):
    """enqueue, and enqueue again."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []

    def arrive(self, batch: list[Request], again: Sequence[Request] = ()) -> None:
        """Enqueue new requests under their names, and some of before."""
        first = len(self.requests) + 1
        named = [replace(request, job_id=f"j{first + i}") for i, request in enumerate(batch)]
        self.requests += named
        self._send_requests([*named, *again])

    def _send_requests(self, batch: list[Request]) -> None:
        rows = [word for request in batch for word in new_job(request).row()]
        reply = texts(self.run(scripts.enqueue(clock=self.bench.clock, rows=rows)))
        self.confirm(producing.enqueue(self.model, batch), reply)

    @rule(batch=st.lists(requests, min_size=1, max_size=4), again=st.lists(some, max_size=2))
    def enqueue(self, batch: list[Request], again: list[int]) -> None:
        """New jobs, and some whose reply was lost; that is safe as long as their record lives (R43)."""
        repeated = [nth(self.requests, pick) for pick in again]
        gone = self.model.accepted.keys() - self.model.jobs.keys()
        self.arrive(batch, [request for request in repeated if request.job_id not in gone])


class Operators(Protocol):
    """cancel, replay, discard."""

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
    @rule(picks=st.lists(some, min_size=1, max_size=2), epoch=st.sampled_from((None, 0, 1)))
    def cancel(self, picks: list[int], epoch: int | None) -> None:
        ids = [nth(sorted(self.model.accepted), pick) for pick in picks]
        rows = [word for one in ids for word in (one, "-" if epoch is None else str(epoch))]
        call = scripts.cancel(clock=self.bench.clock, actor="operator", retention_ms=RETENTION, rows=rows)
        reply = texts(self.run(call))
        self.confirm([operating.cancel(self.model, one, epoch) for one in ids], reply)

    @precondition(lambda self: self.letters)
    @rule(
        picks=st.lists(some, min_size=1, max_size=2),
        epoch_off=st.sampled_from((0, 0, 0, 1)),
        kept=st.booleans(),
    )
    def operator_handles_letters(self, picks: list[int], epoch_off: int, kept: bool) -> None:
        """Replays or discards dead letters, some of which were handled before, or are twice in one call."""
        letters = [nth(self.letters, -1 - pick) for pick in picks]
        wrapper, predict, task = (
            (scripts.replay, operating.replay, ["-"]) if kept else (scripts.discard, operating.discard, [])
        )
        rows = [word for entry, job, epoch in letters for word in (entry, job, str(epoch + epoch_off), *task)]
        call = wrapper(clock=self.bench.clock, actor="operator", retention_ms=RETENTION, rows=rows)
        reply = texts(self.run(call))
        expected = [predict(self.model, job, epoch + epoch_off, epoch) for _, job, epoch in letters]
        if kept:
            self.damaged -= {job for (_, job, _), word in zip(letters, expected, strict=True) if word == "OK"}
        self.confirm(expected, reply)
