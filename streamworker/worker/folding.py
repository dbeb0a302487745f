"""Which counters to add up, so that names that producers and handlers make up do not fill Redis (R48)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from streamworker.policy import Policy
from streamworker.store import manifest, scripts
from streamworker.store.caller import Caller
from streamworker.store.connection import Argument
from streamworker.store.keys import Keys
from streamworker.telemetry.labels import Codes, codes_of_tasks

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


async def fold(caller: Caller, keys: Keys, policies: Mapping[str, Policy]) -> None:
    """Add them up, once there are many. `policies`: of the app's tasks, by name."""
    command = caller.command
    if await command("HLEN", keys.stats) + await command("HLEN", keys.depths) <= FOLD_ABOVE:
        return
    prefix = manifest.FIELD.encode()
    declared = [name for name in await command("HKEYS", keys.meta) if name.startswith(prefix)]
    tasks = {name.removeprefix(prefix).decode() for name in declared} | policies.keys()
    codes = Codes(codes_of_tasks(policies.values()))
    stats, depths = [
        [name.decode("utf-8", "replace") for name in await command("HKEYS", key)]
        for key in (keys.stats, keys.depths)
    ]
    found = list(rows(stats, depths, tasks, codes.label))
    for start in range(0, len(found), scripts.BATCH):
        batch = [word for row in found[start : start + scripts.BATCH] for word in row]
        await caller.run(scripts.fold(rows=batch))


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
