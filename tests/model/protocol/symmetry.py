"""Two jobs that are alike may change their names, and so may the workers: such states are one.

`Keys.of` gives a number of 64 bits that is the same for all of them. Two states that differ have the same one
with a chance of one in 2^64: among ten million states, that happens once in 400,000 explorations.
"""

from __future__ import annotations

from tests.model.protocol.state import (
    GONE_ENTRY,
    NO_ENTRY,
    Answer,
    Aside,
    Claim,
    Enqueue,
    Record,
    Replay,
    Request,
    State,
    Worker,
)


class Keys:
    """What states are told apart by."""

    def __init__(self, *, jobs_alike: bool) -> None:
        self._jobs_alike = jobs_alike
        self._known: dict[int, int] = {}  # by the hash under these names

    def forget(self) -> None:
        """The states met so far: those of another depth hardly come again."""
        self._known.clear()

    def of(self, state: State) -> int:
        names = hash(state)
        key = self._known.get(names)
        if key is None:
            key = self._known[names] = self._among_all_names(state)
        return key

    def _among_all_names(self, state: State) -> int:
        variants = [state]
        if self._jobs_alike:
            first, second = _job_rank(state, 0), _job_rank(state, 1)
            if first > second:
                variants = [swap_jobs(state)]
            elif first == second:
                variants.append(swap_jobs(state))
        first, second = _worker_rank(state.workers[0]), _worker_rank(state.workers[1])
        if first > second:
            variants = [swap_workers(variant) for variant in variants]
        elif first == second:
            variants += [swap_workers(variant) for variant in variants]
        return min(map(hash, variants))


def _job_rank(state: State, job: int) -> tuple[object, ...]:
    """Of what does not change when workers and entries get other names."""
    record: Record | None = state.records[job]
    aside: Aside = state.asides[job]
    if record is None:
        return ("", aside.told, aside.expired, aside.fences)
    return (
        record.status,
        record.attempt,
        record.starts,
        record.strikes,
        record.epoch,
        record.fence,
        record.lease,
        aside.fences,
        aside.scheduled,
    )


def _worker_rank(worker: Worker) -> tuple[object, ...]:
    """Of what does not change when jobs and entries get other names."""
    held = [claim for claim in worker.claims if claim is not None]
    return (
        worker.session,
        worker.stored,
        worker.link,
        len(worker.offers),
        len(worker.reading),
        len(worker.answers),
        len(held),
        sum(claim.sent for claim in held),
    )


def swap_workers(state: State) -> State:
    return state._replace(
        records=tuple(
            record._replace(holder=1 - record.holder) if record is not None and record.holder >= 0 else record
            for record in state.records
        ),
        entries=tuple(
            entry._replace(owner=1 - entry.owner) if entry.owner >= 0 else entry for entry in state.entries
        ),
        workers=state.workers[::-1],
        late=tuple(
            call._replace(worker=1 - call.worker) if isinstance(call, Request) and call.worker >= 0 else call
            for call in state.late
        ),
    )


def swap_jobs(state: State) -> State:
    """The entries of the second job come first then, and whoever names them uses their new places."""
    first = [entry._replace(job=1) for entry in state.entries if entry.job == 0]
    second = [entry._replace(job=0) for entry in state.entries if entry.job == 1]
    ids = {
        at: at + len(second) if at <= len(first) else at - len(first)
        for at in range(1, len(state.entries) + 1)
    }
    ids |= {NO_ENTRY: NO_ENTRY, GONE_ENTRY: GONE_ENTRY}

    def claim_of(claim: Claim | None) -> Claim | None:
        return claim and claim._replace(entry=ids[claim.entry])

    return State(
        records=tuple(
            record and record._replace(entry=ids[record.entry]) for record in reversed(state.records)
        ),
        asides=state.asides[::-1],
        entries=(*second, *first),
        workers=tuple(
            worker._replace(
                claims=tuple(claim_of(claim) for claim in reversed(worker.claims)),
                offers=tuple(sorted(ids[entry] for entry in worker.offers)),
                reading=tuple(sorted(ids[entry] for entry in worker.reading)),
                abandoned=tuple(sorted(ids[entry] for entry in worker.abandoned)),
                answers=tuple(_swapped_answer(answer, ids) for answer in worker.answers),
            )
            for worker in state.workers
        ),
        late=tuple(_swapped_call(call, ids) for call in state.late),
        candidates=state.candidates[::-1],
        key=state.key and (1 - state.key[0], state.key[1]),
        hold=state.hold,
        faults=state.faults,
    )


def _swapped_answer(answer: Answer, ids: dict[int, int]) -> Answer:
    settle = answer.settle and (1 - answer.settle[0], answer.settle[1])
    claims = tuple((1 - job, claim._replace(entry=ids[claim.entry])) for job, claim in answer.claims)
    return answer._replace(settle=settle, claims=claims)


def _swapped_call(call: Request | Enqueue | Replay, ids: dict[int, int]) -> Request | Enqueue | Replay:
    if not isinstance(call, Request):
        return call._replace(job=1 - call.job)
    settle = call.settle and (1 - call.settle[0], call.settle[1], call.settle[2])
    return call._replace(settle=settle, offers=tuple(sorted(ids[entry] for entry in call.offers)))
