"""A state that is being changed, and the one step from which the next state is made."""

from __future__ import annotations

from tests.model.protocol.state import (
    CUT,
    GONE_ENTRY,
    LIVE,
    OUT,
    SLOW,
    TERMINAL,
    UNDELIVERED,
    Claim,
    Record,
    Request,
    State,
)


class Draft:
    """The parts of a state, to be replaced one by one. `wrong` is the first thing that must not be."""

    __slots__ = (
        "asides",
        "candidates",
        "entries",
        "faults",
        "hold",
        "key",
        "late",
        "next_entry",
        "records",
        "workers",
        "wrong",
    )

    def __init__(self, state: State) -> None:
        self.records = list(state.records)
        self.asides = list(state.asides)
        self.entries = dict(enumerate(state.entries, 1))
        self.workers = list(state.workers)
        self.late = list(state.late)
        self.candidates = list(state.candidates)
        self.key = state.key
        self.hold = state.hold
        self.faults = state.faults
        self.next_entry = len(state.entries) + 1
        self.wrong: str | None = None

    # --- looking

    def open_record(self, job: int) -> Record:
        record = self.records[job]
        assert record is not None
        return record

    # --- changing

    def blame(self, wrong: str) -> None:
        self.wrong = self.wrong or wrong

    def spend(self, fault: int) -> None:
        self.faults = (*self.faults[:fault], self.faults[fault] - 1, *self.faults[fault + 1 :])

    def set_record(self, job: int, **changes: object) -> None:
        self.records[job] = self.open_record(job)._replace(**changes)  # type: ignore[arg-type]

    def set_aside(self, job: int, **changes: object) -> None:
        self.asides[job] = self.asides[job]._replace(**changes)  # type: ignore[arg-type]

    def set_worker(self, worker: int, **changes: object) -> None:
        self.workers[worker] = self.workers[worker]._replace(**changes)  # type: ignore[arg-type]

    def set_claim(self, worker: int, job: int, claim: Claim | None) -> None:
        claims = list(self.workers[worker].claims)
        claims[job] = claim
        self.set_worker(worker, claims=tuple(claims))

    def own(self, entry: int, owner: int) -> None:
        """Who has the entry: XREADGROUP or XCLAIM."""
        if entry in self.entries:
            self.entries[entry] = self.entries[entry]._replace(owner=owner)

    def cut(self, worker: int) -> None:
        """The worker's connection is gone, and all answers on it: it will send its outcomes again."""
        at = self.workers[worker]
        claims = tuple(claim and claim._replace(sent=False) for claim in at.claims)
        self.workers[worker] = at._replace(link=CUT, answers=(), offers=(), claims=claims)
        self.excuse(worker)

    def excuse(self, worker: int) -> None:
        """A claim that this worker has not heard of, and whose entry is pending for nobody, will be missed.

        Its group or its entry was lost, so nobody will tell the worker, and the lease runs out: a strike that
        nobody can spare the job.
        """
        for job, record in enumerate(self.records):
            if record is None or record.holder != worker or record.lease not in (LIVE, OUT):
                continue
            claim = self.workers[worker].claims[job]
            entry = self.entries.get(record.entry)
            if (claim is None or claim.fence != record.fence) and (
                entry is None or entry.owner == UNDELIVERED
            ):
                self.set_record(job, lease=SLOW)

    # --- the next state

    def freeze(self) -> State:
        """The state as it is now: without what nobody can ask for, entries in a fixed order, from 1."""
        for job, record in enumerate(self.records):
            if record is not None:
                self._forget(job, record)
        ids = sorted(self.entries, key=self._rank)
        if ids == list(range(1, self.next_entry)):
            entries = tuple(self.entries.values())
        else:
            entries = tuple(self.entries[one] for one in ids)
            self._renumber({old: new for new, old in enumerate(ids, 1)})
        self.late.sort(key=repr)
        return State(
            tuple(self.records),
            tuple(self.asides),
            entries,
            tuple(self.workers),
            tuple(self.late),
            tuple(self.candidates),
            self.key,
            self.hold,
            self.faults,
        )

    def _forget(self, job: int, record: Record) -> None:
        """What can make no difference any more: numbers of a job that is over, fences that nobody names."""
        aside = self.asides[job]
        if record.status in TERMINAL and (record.starts or aside.recorded or record.cancel):
            record = self.records[job] = record._replace(attempt=0, starts=0, cancel=False)
            aside = self.asides[job] = aside._replace(recorded=0)
        if not aside.fences:
            return
        named = {claim.fence for worker in self.workers if (claim := worker.claims[job]) is not None}
        for worker in self.workers:
            for answer in worker.answers:
                named.update(claim.fence for one, claim in answer.claims if one == job)
        for call in self.late:
            if isinstance(call, Request) and call.settle is not None and call.settle[0] == job:
                named.add(call.settle[1])
        candidate = self.candidates[job]
        if candidate is not None:
            named.add(candidate.fence)
        settled = record.settled
        if settled is not None and settled.fence not in named:
            self.records[job] = record._replace(settled=None)
        if not named and not record.fence:
            self.asides[job] = aside._replace(fences=0)

    def _rank(self, entry: int) -> tuple[int, bool, str, int]:
        job, kind, owner = self.entries[entry]
        record = self.records[job]
        return job, record is None or record.entry != entry, kind, owner

    def _renumber(self, new: dict[int, int]) -> None:
        """Those who name entries: an id that is in no stream any more is like any other such id."""
        for job, record in enumerate(self.records):
            if record is not None and record.entry > 0:
                self.records[job] = record._replace(entry=new.get(record.entry, GONE_ENTRY))
        for number, worker in enumerate(self.workers):
            if worker.offers or worker.reading or worker.abandoned or worker.answers or any(worker.claims):
                self.workers[number] = worker._replace(
                    claims=tuple(claim and _renamed(claim, new) for claim in worker.claims),
                    offers=_known(worker.offers, new),
                    reading=_known(worker.reading, new),
                    abandoned=_known(worker.abandoned, new),
                    answers=tuple(
                        answer._replace(
                            claims=tuple((job, _renamed(claim, new)) for job, claim in answer.claims)
                        )
                        for answer in worker.answers
                    ),
                )
        for at, call in enumerate(self.late):
            if isinstance(call, Request):
                self.late[at] = call._replace(offers=_known(call.offers, new))


def _renamed(claim: Claim, new: dict[int, int]) -> Claim:
    return claim._replace(entry=new.get(claim.entry, GONE_ENTRY))


def _known(entries: tuple[int, ...], new: dict[int, int]) -> tuple[int, ...]:
    return tuple(sorted(new[entry] for entry in entries if entry in new))
