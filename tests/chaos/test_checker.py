"""The judge sees what is wrong: each kind of bad history is made by hand, and found; good ones pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamworker.core.states import HELD, Disposition, Status
from tests.chaos import overload_stories
from tests.chaos.checker import Kind, check, report
from tests.chaos.history import (
    Accepted,
    End,
    Fault,
    FaultKind,
    Figure,
    Final,
    History,
    Limits,
    Paused,
    Start,
    Told,
    lives,
)
from tests.chaos.recovery import allowed_seconds, second_starts
from tests.chaos.stories import DIED, KILL, LIMITS, ONCE, T0, TWICE, Story, run


def kinds(history: History) -> set[Kind]:
    return {violation.kind for violation in check(history)}


#: Limits of the stories about gates.
GATED = replace(LIMITS, holders={"concurrency:c": 2}, rates={"rate:r": (1, 1000, 2)}, strict={"strict"})
FREEZE = Fault(FaultKind.FREEZE, T0 + 2.2, T0 + 9, "a")


def gated(*stories: Story, **parts: object) -> History:
    return run(*stories, limits=GATED, **parts)


def three(holds: str, *, apart: float) -> list[Story]:
    """Three jobs of one gate, so many seconds apart."""
    return [Story(job=job, at=T0 + apart * n, holds=holds) for n, job in enumerate("jkl")]


def bereaved(k_at: float) -> History:
    """A worker is killed with a job, and another job of its entity is enqueued at this time."""
    return gated(Story(DIED, holds="entity:e"), Story(job="k", at=k_at, holds="entity:e"), faults=[KILL])


def taken(k_at: float) -> History:
    """A worker is frozen and its job taken over, while another job of its entity starts."""
    frozen = Story("claimed@a processing failed_terminal:recovered", holds="entity:e")
    frozen.ends.append(End("j", 10, "a", T0 + 9, Told.RETURNED))
    return gated(frozen, Story(job="k", at=k_at, holds="entity:e"), faults=[FREEZE])


def paused(since: float, until: float) -> Paused:
    return Paused("task:t", since, until, since - 0.1, until + 0.1)


GOOD: dict[str, History] = {
    **overload_stories.GOOD,
    "one after the other of an entity": gated(*three("entity:e", apart=3)),
    "two at a time": gated(*three("concurrency:c", apart=1.5)),
    "another one after the death of a holder": bereaved(T0 + 0.7),
    "another one after the claim of a frozen holder was taken away": taken(T0 + 1.2),
    "three at a time, when an operator allows it": gated(
        *three("concurrency:c", apart=0), figures=[Figure("concurrency:c", 3, T0, T0 + 9)]
    ),
    "three at a time that were let in before the limit was lowered": gated(
        *three("concurrency:c", apart=0.5),
        figures=[Figure("concurrency:c", 3, T0, T0 + 1.4), Figure("concurrency:c", 1, T0 + 1.3, T0 + 9)],
    ),
    "as many as a bucket gives": gated(*three("rate:r", apart=0.5)),
    "as many as a bucket gives, and again when the clock was put on": gated(
        *three("rate:r", apart=0.4), jumps=[T0 + 1.1]
    ),
    "a claim before a pause and one after it": gated(
        Story(), Story(job="k", at=T0 + 5), pauses=[paused(T0 + 2, T0 + 5)]
    ),
    "one that runs once": run(Story()),
    "one that fails and runs again": run(
        Story("claimed processing retry_scheduled:error claimed processing succeeded:returned")
    ),
    "one that is handed back": run(
        Story("claimed processing queued:shutdown claimed processing succeeded:returned")
    ),
    "one whose worker was killed": run(Story(DIED), faults=[KILL]),
    "one that was never claimed": run(
        Story("failed_terminal:cancelled").change(2, facts={"code": "cancelled"}), final=Final()
    ),
    "a crash loop": run(
        Story(
            "claimed processing retry_scheduled:recovered claimed retry_scheduled:recovered "
            "claimed processing failed_terminal:died"
        ),
        faults=[KILL],
    ),
    "a claim under a newer fence after a lost reply": run(
        Story().change(4, fence=12),
        starts=[Start("j", 1, 12, "a", T0 + 2)],
        ends=[End("j", 12, "a", T0 + 2.5, Told.RETURNED)],
    ),
    "an enqueue that was never answered": run(Story(), accepted=[], maybe=["j", "k"]),
    "a key that is free again": run(
        Story(),
        Story(job="k", at=T0 + 10),
        accepted=[Accepted(job, "t", "normal", key="x") for job in "jk"],
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories_pass(name: str) -> None:
    assert report(check(GOOD[name])) == ""


def _replayed() -> Story:
    story = Story("claimed processing failed_terminal:error")
    story.edges.append(
        story.edges[-1]._replace(
            version=5,
            epoch=1,
            from_status=Status.FAILED_TERMINAL,
            to_status=Status.QUEUED,
            attempt=0,
            reason="replayed",
        )
    )
    return story


#: Of strict order: the job before has failed and will be tried again.
STRICT = Story(
    "claimed processing retry_scheduled:error claimed processing succeeded:returned",
    task="strict",
    holds="entity:e",
)
FINAL = Final()
BAD: dict[str, tuple[Kind, History]] = {
    **overload_stories.BAD,
    "accepted and unknown": (
        Kind.LOST,
        run(Story(), accepted=[Accepted(job, "t", "normal") for job in "jk"]),
    ),
    "a duplicate of nothing": (
        Kind.LOST,
        run(
            Story(),
            accepted=[Accepted("j", "t", "normal"), Accepted("k", "t", "normal", Disposition.DUPLICATE)],
        ),
    ),
    "never over": (Kind.LOST, run(Story("claimed processing"))),
    "never over after a replay": (Kind.LOST, run(_replayed(), final=Final())),
    "from nowhere": (Kind.UNASKED, run(Story(), accepted=[])),
    "a handler of a job that nobody asked for": (
        Kind.UNASKED,
        run(Story(), starts=[*Story().starts, Start("k", 1, 1, "a", T0)]),
    ),
    "trimmed unread": (Kind.UNREAD, run(Story(), unread=1)),
    "a gap in the versions": (Kind.BROKEN_CHAIN, run(Story().change(4, version=5))),
    "the same version twice": (Kind.BROKEN_CHAIN, run(Story().change(4, version=3))),
    "no beginning": (Kind.BROKEN_CHAIN, run(Story(), transitions=Story().edges[1:])),
    "a jump": (Kind.BROKEN_CHAIN, run(Story(TWICE).change(5, from_status=Status.QUEUED))),
    "an epoch without a replay": (Kind.BROKEN_CHAIN, run(Story().change(4, epoch=1))),
    "an edge that is none": (Kind.ILLEGAL_EDGE, run(Story("processing succeeded:returned"))),
    "a life after the end": (
        Kind.ILLEGAL_EDGE,
        run(Story(f"{ONCE} claimed processing succeeded:returned")),
    ),
    "two ends": (Kind.DOUBLE_OUTCOME, run(Story(f"{ONCE} claimed processing succeeded:returned"))),
    "two outcomes of one claim": (Kind.DOUBLE_OUTCOME, run(Story(TWICE).change(7, fence=10))),
    "the outcome of an older claim": (Kind.STALE_ACCEPTED, run(Story(TWICE).change(7, fence=15))),
    "an outcome under the fence before the newest": (
        Kind.STALE_ACCEPTED,
        run(Story(), starts=[Start("j", 1, 12, "a", T0 + 2)]),
    ),
    "an outcome that the worker before told": (Kind.STALE_ACCEPTED, run(Story(DIED).change(7, worker="a"))),
    "a fence that fell": (Kind.FENCE_FELL, run(Story(TWICE).change(5, fence=9))),
    "success that nobody told": (Kind.FALSE_OUTCOME, run(Story(), ends=[])),
    "success of a handler that raised": (
        Kind.FALSE_OUTCOME,
        run(Story(), ends=[End("j", 10, "a", T0, Told.RAISED)]),
    ),
    "success of a handler under another fence": (
        Kind.FALSE_OUTCOME,
        run(Story(), ends=[End("j", 11, "a", T0, Told.RETURNED)]),
    ),
    "a claim that charges nothing": (Kind.MISCOUNTED, run(Story().change(2, attempt=0))),
    "a retry that gives the attempt back": (Kind.MISCOUNTED, run(Story(TWICE).change(4, attempt=0))),
    "a death before the start that is charged": (
        Kind.MISCOUNTED,
        run(Story("claimed retry_scheduled:recovered").change(3, attempt=1)),
    ),
    "a hand-back that is charged": (
        Kind.MISCOUNTED,
        run(Story("claimed processing queued:shutdown").change(4, attempt=1)),
    ),
    "an attempt too many": (
        Kind.TOO_MANY_ATTEMPTS,
        run(Story(f"{'claimed processing retry_scheduled:error ' * 3} {ONCE}")),
    ),
    "a start too many": (
        Kind.TOO_MANY_STARTS,
        run(Story(f"{'claimed processing queued:snoozed ' * 4} {ONCE}")),
    ),
    "a third strike that is no end": (
        Kind.TOO_MANY_STRIKES,
        run(Story(f"{'claimed retry_scheduled:recovered ' * 3} {ONCE}")),
    ),
    "a start without a claim": (
        Kind.UNCLAIMED_START,
        run(Story(), starts=[*Story().starts, Start("j", 1, 9, "a", T0)]),
    ),
    "two starts under one claim": (
        Kind.STARTED_TWICE,
        run(Story(), starts=[*Story().starts, Start("j", 1, 10, "b", T0)]),
    ),
    "a second start for no reason": (Kind.UNEXPLAINED_START, run(Story(DIED))),
    "a second start after somebody else's death": (
        Kind.UNEXPLAINED_START,
        run(Story(DIED), faults=[replace(KILL, worker="b")]),
    ),
    "a second start after a death before the claim": (
        Kind.UNEXPLAINED_START,
        run(Story(DIED), faults=[replace(KILL, begin=T0 + 0.5)]),
    ),
    "a second start, and then the death": (
        Kind.UNEXPLAINED_START,
        run(Story(DIED), faults=[replace(KILL, begin=T0 + 5.5)]),
    ),
    "a second start after an outage that was held": (
        Kind.UNEXPLAINED_START,
        run(Story(DIED), faults=[Fault(FaultKind.OUTAGE, T0 + 2.2, T0 + 3.3)]),
    ),
    "a key held twice": (
        Kind.SHARED_KEY,
        run(
            Story(),
            Story(job="k", at=T0 + 1),
            accepted=[Accepted(job, "t", "normal", key="x") for job in "jk"],
        ),
    ),
    "recovered too late": (
        Kind.LATE_RECOVERY,
        run(Story(DIED), faults=[replace(KILL, begin=T0 + 2.1)], limits=replace(LIMITS, lease=0.6)),
    ),
    "claimed for a dead worker and recovered too late": (
        Kind.LATE_RECOVERY,
        run(Story(DIED).change(4, at_ms=round((T0 + 6) * 1000)), faults=[replace(KILL, begin=T0 + 0.5)]),
    ),
    "never recovered": (Kind.LATE_RECOVERY, run(Story("claimed@a processing"), faults=[KILL])),
    "frozen for long and never recovered": (
        Kind.LATE_RECOVERY,
        run(Story("claimed@a processing"), faults=[Fault(FaultKind.FREEZE, T0 + 2.5, T0 + 90, "a")]),
    ),
    "two of an entity at once": (Kind.TOO_MANY_HOLDERS, gated(*three("entity:e", apart=0.5))),
    "three of two at once": (Kind.TOO_MANY_HOLDERS, gated(*three("concurrency:c", apart=0.2))),
    "two at once after the limit was lowered": (
        Kind.TOO_MANY_HOLDERS,
        gated(
            *three("concurrency:c", apart=0.5),
            figures=[Figure("concurrency:c", 3, T0, T0 + 0.9), Figure("concurrency:c", 1, T0 + 0.8, T0 + 9)],
        ),
    ),
    "two at once long after the limit was lowered": (
        Kind.TOO_MANY_HOLDERS,
        gated(
            *(
                story.change(2, at_ms=round((T0 + 20) * 1000)).change(3, at_ms=round((T0 + 20) * 1000))
                for story in three("concurrency:c", apart=0)
            ),
            figures=[Figure("concurrency:c", 3, T0, T0 + 1.4), Figure("concurrency:c", 1, T0 + 1.3, T0 + 90)],
        ),
    ),
    "another one before the death of a holder": (Kind.TOO_MANY_HOLDERS, bereaved(T0 + 0.4)),
    "another one before the claim of a frozen holder was taken away": (
        Kind.TOO_MANY_HOLDERS,
        taken(T0 + 0.9),
    ),
    "more than a bucket gives": (Kind.OVER_RATE, gated(*three("rate:r", apart=0.4))),
    "the later one of an entity first": (
        Kind.OUT_OF_ORDER,
        gated(
            Story(at=T0 + 0.1, holds="entity:e").change(2, at_ms=round((T0 + 4) * 1000)),
            Story(job="k", at=T0 + 0.2, holds="entity:e"),
        ),
    ),
    "another one before the one that came back from a crash": (
        Kind.OUT_OF_ORDER,
        bereaved(T0 + 2.2),
    ),
    "another one between two attempts of strict order": (
        Kind.OUT_OF_ORDER,
        gated(STRICT, Story(job="k", task="strict", at=T0 + 2.2, holds="entity:e")),
    ),
    "a claim in a pause": (Kind.CLAIMED_IN_PAUSE, gated(Story(), pauses=[paused(T0 + 0.5, T0 + 2)])),
    "a claim of what a paused dependency is needed for": (
        Kind.CLAIMED_IN_PAUSE,
        gated(
            Story(holds="pause:dependency:d"),
            pauses=[Paused("dependency:d", T0 + 0.5, T0 + 2, T0 + 0.4, T0 + 2.1)],
        ),
    ),
    "a value that nobody has loaded": (
        Kind.WRONG_VALUE,
        run(Story("claimed processing failed_terminal:error").change(4, facts={"code": "wrong_value"})),
    ),
    "an entry that stayed": (Kind.LEFT_OVER, run(Story(), final=replace(FINAL, streams={"lane:x": (1, 0)}))),
    "a pending entry that stayed": (
        Kind.LEFT_OVER,
        run(Story(), final=replace(FINAL, streams={"l": (0, 1)})),
    ),
    "a schedule that is not empty": (Kind.LEFT_OVER, run(Story(), final=replace(FINAL, waiting={"s": 1}))),
    "a counter that is off": (Kind.LEFT_OVER, run(Story(), final=replace(FINAL, counters={"queued:x": -1}))),
    "a key that stays for ever": (Kind.LEFT_OVER, run(Story(), final=replace(FINAL, immortal=["body:j"]))),
    "a record of another version": (
        Kind.WRONG_RECORD,
        run(Story(), final=Final(records={"j": Story().record(version=9)})),
    ),
    "a record with other starts": (
        Kind.WRONG_RECORD,
        run(Story(), final=Final(records={"j": Story().record(starts=2)})),
    ),
    "a record with a strike": (
        Kind.WRONG_RECORD,
        run(Story(), final=Final(records={"j": Story().record(strikes=1)})),
    ),
    "a record that the log does not know": (
        Kind.WRONG_RECORD,
        run(Story(), final=Final(records={"k": Story(job="k").record()})),
    ),
    "a failure without a dead letter": (
        Kind.WRONG_LETTER,
        run(Story("claimed processing failed_terminal:error"), final=Final()),
    ),
    "two dead letters": (
        Kind.WRONG_LETTER,
        run(Story("claimed processing failed_terminal:error"), final=Final(dead_letters=["j", "j"])),
    ),
    "a dead letter of a success": (Kind.WRONG_LETTER, run(Story(), final=Final(dead_letters=["j"]))),
    "a dead letter of nobody": (Kind.WRONG_LETTER, run(Story(), final=Final(dead_letters=["k"]))),
}


@pytest.mark.parametrize("name", BAD)
def test_each_kind_of_bad_history_is_caught(name: str) -> None:
    kind, history = BAD[name]

    assert kind in kinds(history)


def test_every_kind_of_violation_has_a_bad_history() -> None:
    assert {kind for kind, _ in BAD.values()} == set(Kind)


def test_a_record_that_agrees_is_not_blamed() -> None:
    assert kinds(run(Story(TWICE), final=Final(records={"j": Story(TWICE).record()}))) == set()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (KILL, FaultKind.KILL),
        (Fault(FaultKind.FREEZE, T0, T0 + 9, "a"), FaultKind.FREEZE),
        (Fault(FaultKind.OUTAGE, T0 + 2.2, T0 + 2.4), FaultKind.OUTAGE),
        (Fault(FaultKind.STALL, T0 + 1.5, T0 + 2.4), FaultKind.STALL),
        (Fault(FaultKind.STALL, T0 + 1.5, T0 + 1.6), None),
        (Fault(FaultKind.HINTS, T0 + 2.5), None),
    ],
)
def test_second_starts_are_told_by_cause(fault: Fault, cause: FaultKind | None) -> None:
    history = run(Story(DIED), faults=[fault])

    assert [each for *_, each in second_starts(history, lives(history))] == [cause]


def test_the_bound_of_a_recovery_grows_with_what_stopped_the_sweeps() -> None:
    def allowed(*faults: Fault) -> float:
        return round(allowed_seconds(100.0, faults, Limits(lease=6.0, margin=0.5)), 3)

    outage = Fault(FaultKind.OUTAGE, 101.0, 110.0, sweeps_from=110.0)
    next_one = Fault(FaultKind.OUTAGE, 118.0, 120.0, sweeps_from=120.0)

    assert allowed() == 6 + 1 + 0.5
    assert allowed(replace(outage, sweeps_from=None)) == 7.5
    assert allowed(outage) == 10 + 2 + 6 + 1 + 0.5
    assert allowed(next_one, outage) == 20 + 2 + 6 + 1 + 0.5
    assert allowed(next_one) == 7.5  # all is over by then
    assert allowed(replace(outage, begin=97.0, sweeps_from=99.0)) == -1 + 2 + 6 + 1 + 0.5


def test_the_last_word_of_a_dead_worker_may_come_late() -> None:
    """A heartbeat that was stuck in a cut line renews the lease when it is carried out."""
    late = Story(DIED).change(4, at_ms=round((T0 + 6) * 1000))
    line = Fault(FaultKind.PARTITION, T0 + 2.4, T0 + 4, "a")

    assert Kind.LATE_RECOVERY in kinds(run(late, faults=[KILL]))
    assert Kind.LATE_RECOVERY not in kinds(run(late, faults=[KILL, line]))
    assert Kind.LATE_RECOVERY in kinds(run(late, faults=[KILL, replace(line, worker="b")]))
    assert Kind.LATE_RECOVERY in kinds(run(late, faults=[KILL, replace(line, end=T0 + 2.4)]))


def test_a_story_is_what_it_seems() -> None:
    story = Story(DIED)

    assert [edge.version for edge in story.edges] == list(range(1, 8))
    assert [edge.attempt for edge in story.edges] == [0, 1, 1, 1, 2, 2, 2]
    assert all(edge.fence for edge in story.edges if edge.to_status in HELD)
