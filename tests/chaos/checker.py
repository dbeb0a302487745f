"""The one judge of all chaos runs and simulations: what is wrong with a history.

Each rule is a function of its own: those in `rules` look at one job, those in `recovery` at what faults did,
those in `gates` at who held what, those in `overload` at backlog, breakers and caches, those in `merging` at
windows, those in `account` at the run as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.chaos import account, gates, merging, overload, recovery, rules
from tests.chaos.history import History, Life, Limits, lives
from tests.chaos.verdict import Kind, Violation

__all__ = ["Kind", "Violation", "check", "report"]

JobRule = Callable[[Life], Iterator[Violation]]
LimitRule = Callable[[Life, Limits], Iterator[Violation]]
RunRule = Callable[[History, Mapping[str, Life]], Iterator[Violation]]

JOB_RULES: tuple[JobRule, ...] = (
    rules.chain,
    rules.legal_edges,
    rules.one_outcome,
    rules.fresh_fences,
    rules.true_outcomes,
    rules.counted_attempts,
    rules.claimed_starts,
)
LIMIT_RULES: tuple[LimitRule, ...] = (rules.within_limits,)
RUN_RULES: tuple[RunRule, ...] = (
    account.all_read,
    account.nothing_lost,
    account.nothing_unasked,
    account.keys_held_once,
    account.empty_at_the_end,
    account.records_agree,
    account.letters_agree,
    recovery.explained,
    recovery.in_time,
    gates.never_too_many,
    gates.within_rate,
    gates.in_order,
    gates.not_in_a_pause,
    overload.drained_in_turn,
    overload.drained_by_tokens,
    overload.the_ill_are_left_alone,
    overload.no_wrong_value,
    merging.events_are_where_told,
    merging.events_are_there_once,
    merging.windows_are_not_too_full,
)


def check(history: History) -> list[Violation]:
    """Return everything that is wrong with a finished run."""
    jobs = lives(history)
    found = [violation for rule in RUN_RULES for violation in rule(history, jobs)]
    for life in jobs.values():
        for rule in JOB_RULES:
            found.extend(rule(life))
        for limit in LIMIT_RULES:
            found.extend(limit(life, history.limits))
    return found


def report(violations: Sequence[Violation], most: int = 20) -> str:
    """The violations as text for a failed test, the first `most` of them."""
    lines = [str(violation) for violation in violations[:most]]
    if len(violations) > most:
        lines.append(f"… and {len(violations) - most} more")
    return "\n".join(lines)
