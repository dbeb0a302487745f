"""The judge of single faults: the rules of the chaos runs, and what this one counts itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamworker import Context
from tests.chaos.history import Told
from tests.chaos.stories import DIED, ONCE, Story
from tests.integration.history import Allowance, Journal, Mark, judge

RETRIED = "claimed processing retry_scheduled:error claimed processing succeeded:returned"


def verdict(
    *stories: Story,
    accepted: tuple[str, ...] = ("j",),
    maybe: tuple[str, ...] = (),
    allowance: Allowance = Allowance(),  # noqa: B008 - frozen
) -> str:
    marks = [
        *(Mark("start", each.job_id, 1, each.fence, 1, 0.0) for story in stories for each in story.starts),
        *(
            Mark("end", each.job_id, 1, each.fence, 1, 0.0)
            for story in stories
            for each in story.ends
            if each.told is Told.RETURNED
        ),
    ]
    edges = [edge for story in stories for edge in story.edges]
    found = judge(accepted=accepted, maybe=maybe, transitions=edges, marks=marks, allowance=allowance)
    return "\n".join(found)


def test_runs_as_they_should_be_are_not_blamed() -> None:
    assert verdict(Story(ONCE)) == ""
    assert verdict(Story(RETRIED)) == ""
    assert verdict(Story("claimed failed_terminal:error")) == ""
    assert verdict(Story(DIED), allowance=Allowance(repeated=1)) == ""


@pytest.mark.parametrize(
    ("story", "blame"),
    [
        (Story("claimed processing"), "came to no end"),
        (Story("processing succeeded:returned"), "illegal_edge"),
        (Story().change(4, version=9), "does not follow"),
        (Story(f"{ONCE} claimed processing succeeded:returned"), "ended 2 times"),
        (Story(RETRIED).change(7, fence=15), "stale_accepted"),
        (Story(job="k"), "nobody enqueued it"),
        (
            Story(f"{'claimed processing retry_scheduled:error ' * 4} {ONCE}"),
            "started 5 times, 4 are allowed",
        ),
        (Story(DIED), "1 starts repeat one that came to no outcome"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named(story: Story, blame: str) -> None:
    assert blame in verdict(story)


def test_a_job_whose_enqueue_was_never_answered_may_be_missing_but_not_half_there() -> None:
    assert verdict(accepted=(), maybe=("j",)) == ""
    assert verdict(Story(), accepted=(), maybe=("j",)) == ""
    assert verdict(Story(""), accepted=(), maybe=("j",)) != ""


def test_the_journal_gives_back_what_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    ctx = Context("j", "task", "j", 2, 7, "normal", None, "c")

    assert journal.marks() == []
    journal.start(ctx)
    running = journal.running()
    journal.end(ctx)

    assert [(mark.job_id, mark.attempt, mark.fence) for mark in running] == [("j", 2, 7)]
    assert [mark.what for mark in journal.marks()] == ["start", "end"]
    assert journal.running() == []
    assert journal.starts("other") == []
