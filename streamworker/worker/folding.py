"""Which counters to add up, so that names that producers and handlers make up do not fill Redis (R48)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from streamworker.store.connection import Argument

#: Counters beyond which it is looked at who they are of.
FOLD_ABOVE = 2_000
#: What all made-up names are counted as.
OTHER = "other"
#: Counters of `stats` by lane and task.
BY_LANE_AND_TASK = frozenset(
    {
        "enqueued",
        "dead",
        "imported",
        "replayed",
        "discarded",
        "trimmed",
        "recovered",
        "died",
        "drained",
        "coalesced",
        "contended",
    }
)


def rows(
    stats: Iterable[str], depths: Iterable[str], tasks: Collection[str], code_of: Callable[[str], str]
) -> Iterator[tuple[Argument, ...]]:
    """The rows of `fold`: counters of tasks that nobody registered, and of codes that `code_of` renames."""
    for field in stats:
        kind, _, rest = field.partition(":")
        first, _, second = rest.partition(":")
        if kind in BY_LANE_AND_TASK and second not in tasks and second != OTHER:
            yield "stats", field, f"{kind}:{first}:{OTHER}"
        elif kind == "dead_of":
            target = f"{kind}:{first if first in tasks else OTHER}:{code_of(second)}"
            if target != field:
                yield "stats", field, target
    for field in depths:
        place, _, rest = field.partition(":")
        lane, _, task = rest.partition(":")
        if task not in tasks and task != OTHER:
            yield "depths", field, f"{place}:{lane}:{OTHER}"
