"""How a producer waits for room."""

from __future__ import annotations

import pytest

from streamworker.core.errors import EnqueueRejected
from streamworker.core.states import Disposition
from streamworker.store.patience import SPREAD, Patience
from streamworker.store.placing import Placed
from streamworker.store.scripts import NewJob

JOBS = [NewJob(name, "pack", "normal", b"{}") for name in "abc"]


def placed(job: NewJob, retry_after: float | None = None) -> Placed:
    if retry_after is None:
        return Placed(job.job_id, Disposition.ACCEPTED)
    return Placed(job.job_id, Disposition.REJECTED, "", retry_after, "lane_full")


def test_only_what_was_refused_is_sent_again_and_all_is_told_in_order() -> None:
    patience = Patience(JOBS, 60.0)

    pause = patience.take([placed(JOBS[0]), placed(JOBS[1], 2.0), placed(JOBS[2], 3.0)])

    assert pause is not None
    assert 2.0 <= pause <= 2.0 * (1 + SPREAD)
    assert patience.jobs == JOBS[1:]
    assert patience.take([placed(JOBS[1]), placed(JOBS[2])]) is None
    assert [one.job_id for one in patience.placed] == ["a", "b", "c"]
    assert {one.disposition for one in patience.placed} == {Disposition.ACCEPTED}


def test_patience_ends_before_a_pause_that_it_does_not_cover() -> None:
    patience = Patience(JOBS[:1], 1.0)

    assert patience.take([placed(JOBS[0], 5.0)]) is None
    assert patience.placed[0].disposition is Disposition.REJECTED


def test_a_refusal_of_the_whole_is_raised_in_the_end() -> None:
    error = EnqueueRejected("full", 5.0)

    assert Patience(JOBS, 60.0).refuse(error) >= 5.0
    with pytest.raises(EnqueueRejected):
        Patience(JOBS, 1.0).refuse(error)


def test_pauses_grow_where_nobody_says_how_long() -> None:
    patience = Patience(JOBS[:1], 60.0)

    pauses = [patience.take([placed(JOBS[0], 0.0)]) for _ in range(12)]

    assert all(pause is not None and pause > 0 for pause in pauses)
    assert (pauses[-1] or 0) >= 0.5 > (pauses[0] or 0)
