"""The judge of the fault tests sees what is wrong: each kind of wrong run is made up here, and found."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamworker import Context
from streamworker.core.states import Status
from streamworker.store.events import Transition
from tests.integration.history import Allowance, Journal, Mark, judge

PATH = "queued claimed processing succeeded"


def edges(path: str, *, job: str = "j", reasons: dict[int, str] | None = None) -> list[Transition]:
    """A life as a list of states; each claim has the fence of its version. `reasons` by version."""
    found: list[Transition] = []
    before: Status | None = None
    for version, name in enumerate(path.split(), 1):
        status = Status(name)
        reason = (reasons or {}).get(version, "any")
        found.append(Transition(job, 0, version, before, status, 0, 1, version, reason, "w", "settle"))
        before = status
    return found


def starts(*fences: int, job: str = "j") -> list[Mark]:
    return [Mark("start", job, 1, fence, 1, 0.0) for fence in fences]


def verdict(
    transitions: list[Transition],
    marks: list[Mark],
    *,
    accepted: tuple[str, ...] = ("j",),
    allowance: Allowance = Allowance(),  # noqa: B008 - frozen
) -> str:
    return "\n".join(judge(accepted=accepted, transitions=transitions, marks=marks, allowance=allowance))


def test_runs_as_they_should_be_are_not_blamed() -> None:
    once_more = "queued claimed processing retry_scheduled claimed processing succeeded"
    recovered = {4: "recovered"}

    assert verdict(edges(PATH), starts(2)) == ""
    assert verdict(edges(once_more), starts(2, 5)) == ""
    assert verdict(edges("queued claimed failed_terminal"), []) == ""
    assert verdict(edges(once_more, reasons=recovered), starts(2, 5), allowance=Allowance(repeated=1)) == ""


@pytest.mark.parametrize(
    ("transitions", "marks", "blame"),
    [
        ([], [], "the log does not know it"),
        (edges("queued claimed processing"), starts(2), "came to no end"),
        (edges("queued retry_scheduled failed_terminal"), [], "no edge leads from queued"),
        (edges(PATH)[:2] + edges(PATH)[3:], starts(2), "does not follow"),
        (edges(PATH)[1:], starts(2), "no beginning"),
        (edges(PATH) + edges(PATH)[3:], starts(2), "2 outcomes were recorded"),
        (edges(PATH), [], "no handler ran"),
        (edges(PATH), starts(2, 2), "2 times under one claim"),
        (edges(PATH), starts(2, 9), "under 2 fences, the log has 1 claims"),
        (edges(PATH) + edges(PATH, job="k"), starts(2) + starts(2, job="k"), "enqueued by nobody"),
        (edges(PATH), starts(2, 3, 4, 5, 6), "4 are allowed"),
        (
            edges(
                "queued claimed processing retry_scheduled claimed processing succeeded",
                reasons={4: "recovered"},
            ),
            starts(2, 5),
            "1 starts repeat one that came to no outcome",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named(transitions: list[Transition], marks: list[Mark], blame: str) -> None:
    assert blame in verdict(transitions, marks)


def test_a_job_whose_enqueue_was_never_answered_may_be_missing_but_not_half_there() -> None:
    assert judge(accepted=[], maybe=["j"], transitions=[], marks=[]) == []
    assert judge(accepted=[], maybe=["j"], transitions=edges(PATH), marks=starts(2)) == []
    assert judge(accepted=[], maybe=["j"], transitions=edges("queued"), marks=[]) != []


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
