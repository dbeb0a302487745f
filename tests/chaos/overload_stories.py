"""Good and bad histories of overload, for the tests of the judge: backlog, windows, breakers."""

from __future__ import annotations

from dataclasses import replace

from streamworker.core.states import Disposition
from tests.chaos.history import Accepted, Fault, FaultKind, Final, History, Ill, Start
from tests.chaos.stories import LIMITS, ONCE, T0, TWICE, Story, run
from tests.chaos.verdict import Kind

FAILED = "claimed processing failed_terminal:error"
#: Limits of the stories about overload: a token a second; opens at 2 of the calls in a second, for a second;
#: windows of two.
BANK = "breaker:dependency:bank"
OVERLOADED = replace(
    LIMITS,
    drain=(1, 1000, 1),
    breakers={BANK: (2, 1000, 1000, 1)},
    holders={"concurrency:dependency:bank": 2},
    merging={"gathered": ("collect", 2), "newest": ("latest", 2)},
)
EVENT = Accepted("j", "gathered", "normal", Disposition.SCHEDULED, "a")
MERGED = Accepted("j", "gathered", "normal", Disposition.COALESCED, "b")
#: Ten seconds after the first call, and for four.
ILL = Ill(BANK, T0 + 12, T0 + 16)


def overloaded(*stories: Story, **parts: object) -> History:
    return run(*stories, limits=OVERLOADED, **parts)


def deferred(job: str, at: float, path: str = f"queued:drained {ONCE}") -> Story:
    facts = {"task": "t", "lane": "normal", "backlog": "asked"}
    return Story(path, job=job, at=at).change(1, reason="deferred", facts=facts)


def gathered(items: str, *, job: str = "j", at: float = T0, path: str = ONCE) -> Story:
    """A job into which another event went a second after it came."""
    return Story(f"queued:merged {path}", job=job, at=at, task="gathered", holds=items)


def latest(*ran: str, sent: tuple[float, float] = (1.0, 3.0)) -> History:
    """A job of two events, sent at these times and answered a second later, and what its handlers got."""
    events = [
        replace(each, task="newest", sent=T0 + at, answered=T0 + at + 1)
        for each, at in zip((EVENT, MERGED), sent, strict=True)
    ]
    path = " ".join(["claimed processing retry_scheduled:error"] * (len(ran) - 1) + [ONCE])
    story = Story(f"queued:merged {path}", task="newest")
    starts = [
        replace(start, holds=(f"event:{name}",) if name else ())
        for start, name in zip(story.starts, ran, strict=True)
    ]
    return overloaded(story, starts=starts, accepted=events)


def calls(*, ill: int, well: int = 0, **parts: object) -> History:
    """A bank's calls of a second: so many in the second before it was ill, and evenly while it was."""

    def one(name: str, begun: float, path: str) -> Story:
        return Story(path, job=name, at=begun - 2, holds=BANK)

    stories = [one(f"w{n}", ILL.since - 1 + n / (well + 1), ONCE) for n in range(well)]
    length = ILL.until - ILL.since
    stories += [one(f"i{n}", ILL.since + (n + 0.5) * length / ill, FAILED) for n in range(ill)]
    return overloaded(*stories, illnesses=[ILL], **parts)


GOOD: dict[str, History] = {
    "two of the backlog, a token each": overloaded(deferred("j", T0), deferred("k", T0 + 1)),
    "two of the backlog at once, when the clock was put on": overloaded(
        deferred("j", T0), deferred("k", T0 + 0.1), jumps=[T0 + 1.05]
    ),
    "one of the backlog that is cancelled there": overloaded(
        deferred("j", T0, "failed_terminal:cancelled").change(2, facts={"code": "cancelled"}), final=Final()
    ),
    "an event and what was merged into it": overloaded(gathered("item:a item:b"), accepted=[EVENT, MERGED]),
    "an event that failed with what was merged into it": overloaded(
        Story("claimed failed_terminal:error", task="gathered"), accepted=[EVENT, MERGED]
    ),
    "an event whose arguments a later one has replaced": latest("b"),
    "one of two events of which nobody knows which was the later": latest("a", sent=(1.0, 1.5)),
    "two attempts of the latest event": latest("b", "b"),
    "an event of a job that failed, and is in another": overloaded(
        gathered("item:a item:b", path=FAILED),
        gathered("item:b", job="k", at=T0 + 9),
        accepted=[EVENT, MERGED, replace(MERGED, job_id="k", disposition=Disposition.SCHEDULED)],
    ),
    # Ten until it has heard enough, two that are under way, two of which nobody hears, and two trials.
    "as many calls of an ill bank as it takes to know": calls(ill=16),
    "as many again as went well before": calls(ill=18, well=12),
    "calls of which nobody has heard": calls(ill=40, faults=[Fault(FaultKind.OUTAGE, T0 + 12, T0 + 17)]),
}
BAD: dict[str, tuple[Kind, History]] = {
    "a claim from the backlog": (Kind.UNDRAINED, overloaded(deferred("j", T0, ONCE))),
    "two of the backlog at once": (Kind.OVER_RATE, overloaded(deferred("j", T0), deferred("k", T0 + 0.9))),
    "the later one of the backlog first": (
        Kind.OUT_OF_ORDER,
        overloaded(deferred("j", T0).change(2, at_ms=round((T0 + 3) * 1000)), deferred("k", T0 + 0.5)),
    ),
    "an event that nobody has worked on": (
        Kind.LOST_ITEM,
        overloaded(gathered("item:a"), accepted=[EVENT, MERGED]),
    ),
    "an event that only an attempt that failed has worked on": (
        Kind.LOST_ITEM,
        overloaded(
            Story(TWICE, task="gathered", holds="item:a"),
            starts=[Start("j", 1, 10, "a", T0 + 2, ("item:a",)), Start("j", 2, 20, "a", T0 + 5)],
            accepted=[EVENT],
        ),
    ),
    "an event that the second attempt has not": (
        Kind.LOST_ITEM,
        overloaded(
            Story(TWICE, task="gathered"),
            starts=[Start("j", 1, 10, "a", T0 + 2, ("item:a",)), Start("j", 2, 20, "a", T0 + 5)],
            accepted=[EVENT],
        ),
    ),
    "an event that an older one has replaced": (Kind.LOST_ITEM, latest("a")),
    "a second attempt with an older event": (Kind.LOST_ITEM, latest("b", "a")),
    "an event in place of which nothing ran": (Kind.LOST_ITEM, latest("")),
    "an item twice": (
        Kind.DOUBLE_ITEM,
        overloaded(gathered("item:a item:b item:a"), accepted=[EVENT, MERGED]),
    ),
    "an event in two jobs": (
        Kind.DOUBLE_ITEM,
        overloaded(
            gathered("item:a item:b"),
            gathered("item:b", job="k", at=T0 + 9),
            accepted=[EVENT, MERGED, replace(MERGED, job_id="k", disposition=Disposition.SCHEDULED)],
        ),
    ),
    "more items than a window takes": (
        Kind.OVERFULL,
        overloaded(gathered("item:a item:b item:c"), accepted=[EVENT, MERGED]),
    ),
    "more events than a window takes": (
        Kind.OVERFULL,
        overloaded(
            Story(task="newest", holds="event:c"),
            accepted=[replace(EVENT, task="newest", key=key) for key in "abc"],
        ),
    ),
    "a duplicate of an event that another job has": (
        Kind.LOST_ITEM,
        overloaded(
            gathered("item:a"),
            accepted=[EVENT, replace(MERGED, disposition=Disposition.DUPLICATE)],
        ),
    ),
    "an ill bank that is called as if there were no breaker": (Kind.OVER_BREAKER, calls(ill=40)),
    "a few calls more of an ill bank than it takes to know": (Kind.OVER_BREAKER, calls(ill=17)),
    "more calls of an ill bank than went well before": (Kind.OVER_BREAKER, calls(ill=19, well=12)),
    "an ill bank that is called when somebody else is struck": (
        Kind.OVER_BREAKER,
        calls(ill=40, faults=[Fault(FaultKind.FREEZE, T0 + 12, T0 + 17, "b")]),
    ),
}
