"""Whose turn it is between tenants: a flood stands with what the others leave, and starves nobody nor itself.

Starts are counted instead of timed: where all jobs take equally long, a place in the order is a time.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamworker.core.outcome import Success
from tests.lua import gate_invariants
from tests.lua.driver import Shard, job
from tests.lua.gate_invariants import FLOOD
from tests.lua.test_turnstile import counts

#: Jobs of one tenant that may stand.
STAND = 16
#: Jobs that a worker asks for at a time.
SLOTS = 8
EXAMPLES = int(os.environ.get("STREAMWORKER_STATEFUL_EXAMPLES", "200")) // 25
_numbers = itertools.count()


def put(shard: Shard, tenant: str, count: int) -> None:
    shard.watchful = False  # each look would read the whole flood: `agree` looks where it matters
    names = [f"{tenant}-{next(_numbers)}" for _ in range(count)]
    shard.enqueue(*(job(name, tenant=tenant) for name in names))


def runs(shard: Shard) -> Iterator[str]:
    """The tenant of each job that starts, in order; each has ended before the next round."""
    while claims := shard.claim(limit=SLOTS):
        yield from (claim.job_id.rpartition("-")[0] for claim in claims)
        for claim in claims:
            shard.settle(claim, Success())


def starts(shard: Shard, count: int) -> Counter[str]:
    return Counter(itertools.islice(runs(shard), count))


def agree(shard: Shard) -> None:
    """What is counted at the turnstiles is what the records say."""
    now = shard.look()
    assert list(gate_invariants.violations(now, now.records(), ())) == []


def test_a_tenant_beside_a_flood_starts_nearly_as_if_it_were_alone(valkey_shard: Shard) -> None:
    put(valkey_shard, "flood", 400)
    put(valkey_shard, "quiet", 100)

    order = list(itertools.islice(runs(valkey_shard), 200))

    last = [place for place, tenant in enumerate(order) if tenant == "quiet"][98]
    assert last < 1.5 * 99, f"the 99th of the quiet tenant started as the {last + 1}th, and alone as the 99th"
    agree(valkey_shard)


def test_a_flood_stands_with_what_the_others_leave(valkey_shard: Shard) -> None:
    put(valkey_shard, "flood", 400)
    put(valkey_shard, "few", 4)
    put(valkey_shard, "fewer", 2)

    valkey_shard.claim(limit=STAND)
    assert counts(valkey_shard)[0] == STAND - 6
    agree(valkey_shard)

    valkey_shard.claim(limit=STAND)  # the last of the others, and some of the flood
    assert counts(valkey_shard)[0] == STAND
    agree(valkey_shard)


def test_a_quarter_is_left_to_a_flood(valkey_shard: Shard) -> None:
    put(valkey_shard, "flood", 400)
    put(valkey_shard, "quiet", 100)
    put(valkey_shard, "other", 100)

    found = starts(valkey_shard, 3 * STAND + 8 * SLOTS)

    assert counts(valkey_shard)[0] == STAND // 4
    assert counts(valkey_shard, "quiet")[0] == STAND
    assert abs(found["flood"] - STAND - (3 * STAND + 8 * SLOTS - STAND) / 9) <= STAND // 4
    agree(valkey_shard)


def test_floods_among_themselves_have_equal_parts(valkey_shard: Shard) -> None:
    put(valkey_shard, "one", 200)
    put(valkey_shard, "one", 400)
    put(valkey_shard, "other", 400)

    found = starts(valkey_shard, 100)

    assert counts(valkey_shard, "one")[0] == counts(valkey_shard, "other")[0] == STAND
    assert abs(found["one"] - found["other"]) <= STAND
    agree(valkey_shard)


def test_who_is_no_flood_any_more_has_an_equal_part(valkey_shard: Shard) -> None:
    put(valkey_shard, "flood", STAND + FLOOD + 8)
    put(valkey_shard, "quiet", 200)
    starts(valkey_shard, 3 * STAND)
    assert counts(valkey_shard)[1] <= FLOOD

    found = starts(valkey_shard, 160)

    assert 60 <= found["flood"] <= 100
    agree(valkey_shard)


@settings(
    max_examples=max(5, EXAMPLES),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    floods=st.lists(st.integers(300, 400), min_size=1, max_size=2),
    calms=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    again=st.booleans(),
)
def test_nobody_waits_for_ever(valkey_shard: Shard, floods: list[int], calms: list[int], again: bool) -> None:
    """Few start between two of a tenant that has work, and a flood has a quarter of an equal part.

    `again`: the others bring new work as long as this goes on.
    """
    shard = Shard(valkey_shard.link, f"{valkey_shard.keys.namespace}-{next(_numbers)}")
    try:
        left = {f"flood{i}": count for i, count in enumerate(floods)}
        left |= {f"calm{i}": count for i, count in enumerate(calms)}
        for tenant, count in left.items():
            put(shard, tenant, count)
        most = STAND * len(left) + SLOTS  # who stands before it, and the round that is under way
        since = dict.fromkeys(left, 0)
        started: Counter[str] = Counter()
        for tenant in itertools.islice(runs(shard), 400):
            left[tenant] -= 1
            started[tenant] += 1
            if again and tenant.startswith("calm"):
                put(shard, tenant, 1)
                left[tenant] += 1
            since[tenant] = 0
            for other in left:
                if other != tenant and left[other]:
                    since[other] += 1
                    assert since[other] <= most, f"{since[other]} starts without one of {other}: {left}"
        for tenant in left:  # who brings one job at a time has no more starts than rounds in which it stood
            if left[tenant] and tenant.startswith("flood"):
                assert started[tenant] >= started.total() / len(left) / 4, f"{tenant} of {started}"
        agree(shard)
    finally:
        shard.clear()
