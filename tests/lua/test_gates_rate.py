"""Rates: a token for each claim, never more than the bucket has, and who waits comes in his turn."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Release, Success
from streamworker.core.states import Reason
from tests.lua.driver import Shard, job, plan_of
from tests.lua.gating import UNCLAIMED, fill, holders, ids, waiters

RATE = "rate:tenant:acme"


def rate(tokens: int = 10, period: int = 1000, burst: int = 2, *, name: str = RATE, more: str = "") -> str:
    return f"0 {name}|{tokens},{period},{burst}{more}"


def claim_all(shard: Shard, *, limit: int = 100) -> list[str]:
    """Claim, and end what was claimed at once."""
    claims = shard.claim(limit=limit)
    for claim in claims:
        shard.settle(claim, Success())
    return ids(claims)


def test_a_full_bucket_lets_in_its_burst(shard: Shard) -> None:
    fill(shard, *"abcd", gates=rate(burst=2))

    assert claim_all(shard) == ["a", "b"]

    assert waiters(shard, RATE) == ["c", "d"]
    shard.check("c", attempt=0, starts=0, place=RATE)


def test_tokens_come_one_by_one(shard: Shard) -> None:
    fill(shard, *"abcde", gates=rate(burst=1))
    assert claim_all(shard) == ["a"]

    shard.elapse(99)
    assert shard.wake()[0] == 0
    shard.elapse(1)
    assert shard.wake()[0] == 1

    assert holders(shard, RATE) == {"b": "granted"}
    assert claim_all(shard) == ["b"]
    assert waiters(shard, RATE) == ["c", "d", "e"]


def test_the_timer_says_when_the_next_token_comes(shard: Shard) -> None:
    fill(shard, *"ab", gates=rate(tokens=3, burst=1))

    claim_all(shard)

    assert shard.wake() == (0, 334)


def test_a_claim_serves_due_timers_itself(shard: Shard) -> None:
    fill(shard, *"ab", gates=rate(burst=1))
    claim_all(shard)
    shard.elapse(100)
    fill(shard, "other", gates="0 entity:e:1")

    assert claim_all(shard) == ["other"]  # this call woke it

    assert claim_all(shard) == ["b"]


def test_an_arrival_does_not_take_the_token_that_was_promised(shard: Shard) -> None:
    fill(shard, *"ab", gates=rate(burst=1))
    claim_all(shard)
    shard.elapse(100)
    shard.wake()
    fill(shard, "c", gates=rate(burst=1))

    assert claim_all(shard) == ["b"]
    assert waiters(shard, RATE) == ["c"]


def test_a_token_is_charged_only_by_the_claim_that_succeeds(shard: Shard) -> None:
    fill(shard, "held", gates="0 concurrency:x|1")
    shard.claim()
    fill(shard, "j", gates=f"{rate(burst=1)} concurrency:x|1")
    assert claim_all(shard) == []
    fill(shard, "k", gates=rate(burst=1))

    assert claim_all(shard) == ["k"]


def test_a_promise_that_is_not_claimed_goes_to_the_next_and_costs_no_token(shard: Shard) -> None:
    fill(shard, *"abc", gates=rate(tokens=1, period=60_000, burst=1))
    claim_all(shard)
    shard.elapse(60_000)
    shard.wake()
    assert holders(shard, RATE) == {"b": "granted"}

    shard.elapse(UNCLAIMED)
    shard.wake()

    assert holders(shard, RATE) == {"c": "granted"}
    assert claim_all(shard) == ["b"]  # the earlier place takes it over
    assert holders(shard, RATE) == {}


def test_a_bucket_is_gone_when_it_is_full(shard: Shard) -> None:
    fill(shard, "a", gates=rate(tokens=1, period=1000, burst=5))
    claim_all(shard)

    assert 0 < shard.look().ttls[f"bucket:{RATE}"] <= 61_000


@pytest.mark.parametrize("back", [1, 3_600_000])
def test_a_clock_that_jumps_back_brings_nothing_and_blocks_nothing(shard: Shard, back: int) -> None:
    fill(shard, *"abc", gates=rate(burst=1))
    claim_all(shard)

    shard.now -= back
    fill(shard, "d", gates=rate(burst=1))
    assert claim_all(shard) == []
    shard.now += 100
    shard.wake()

    assert claim_all(shard) == ["b"]


def test_nobody_takes_over_a_token_that_was_promised_before_the_clock_went_back(shard: Shard) -> None:
    """`a` comes back to its place before `b`, which was let in; by the clock of now there is no token yet."""
    gates = rate(burst=1)
    fill(shard, "a", gates=gates, lane="priority")
    shard.elapse(1)
    fill(shard, *"bc", gates=gates)
    (a,) = shard.claim(plan=plan_of("priority"))
    assert shard.claim() == []
    shard.elapse(100)
    shard.wake()
    assert holders(shard, RATE) == {"b": "granted"}

    shard.now -= 60
    shard.settle(a, Release(Reason.SNOOZED, 1))
    shard.elapse(1)
    shard.promote()

    assert shard.claim(plan=plan_of("priority")) == []
    shard.elapse(100)
    shard.wake()
    assert ids(shard.claim(plan=plan_of("priority", "normal"))) == ["b"]


def test_a_clock_that_jumps_ahead_brings_the_burst_and_no_more(shard: Shard) -> None:
    fill(shard, *"abcdef", gates=rate(burst=2))
    claim_all(shard)

    shard.elapse(86_400_000, swept=False)
    shard.wake()

    assert claim_all(shard) == ["c", "d"]


@pytest.mark.parametrize(
    ("tokens", "period", "burst"), [(300, 1000, 30), (7, 1000, 1), (1000, 3_600_000, 3), (50, 1000, 50)]
)
def test_no_window_holds_more_than_burst_and_rate_allow(
    valkey_shard: Shard, tokens: int, period: int, burst: int
) -> None:
    shard = valkey_shard
    shard.watchful = False
    gap = max(1, period // tokens)
    starts: list[int] = []
    for turn in range(120):
        shard.enqueue(*(job(f"j{turn}-{i}", gates=rate(tokens, period, burst)) for i in range(3)))
        shard.wake()
        starts += [shard.now for _ in claim_all(shard)]
        shard.now += [1, gap, 3, gap // 2, 2 * gap][turn % 5]

    for first in range(len(starts)):
        for last in range(first, len(starts)):
            window = starts[last] - starts[first]
            assert last - first + 1 <= burst + window * tokens / period, (first, last)
    full = burst + (starts[-1] - starts[0]) * tokens / period
    assert len(starts) >= 0.5 * min(full, 360)


def test_a_declared_figure_stands_above_the_jobs_own(shard: Shard) -> None:
    shard.declare(**{"rate:tenant@add": "10,1000,3"})
    fill(shard, *"abcde", gates=rate(burst=1, more="|rate:tenant@add"))

    assert claim_all(shard) == ["a", "b", "c"]


def test_an_operators_figure_for_one_name_stands_above_the_declared(shard: Shard) -> None:
    shard.declare(**{"rate:tenant@add": "10,1000,3"})
    shard.tune("limit", RATE, "10,1000,4")
    fill(shard, *"abcde", gates=rate(burst=1, more="|rate:tenant@add"))

    assert claim_all(shard) == ["a", "b", "c", "d"]


def test_a_new_period_converts_what_is_left(shard: Shard) -> None:
    fill(shard, *"abc", gates=rate(tokens=1, period=1000, burst=4))
    assert len(claim_all(shard)) == 3
    fill(shard, *"def", gates=rate(tokens=60, period=60_000, burst=4))

    assert claim_all(shard) == ["d"]


def test_a_promised_token_is_nobody_elses(shard: Shard) -> None:
    fill(shard, *"abc", gates=rate(burst=2))
    assert claim_all(shard) == ["a", "b"]
    shard.elapse(100)
    shard.wake()
    assert holders(shard, RATE) == {"c": "granted"}
    fill(shard, "d", gates=rate(burst=2))

    assert ids(shard.claim(limit=1, plan=plan_of(("normal", 0, 1, 3)))) == ["c"], "d was read first"

    shard.check("d", place=RATE)


def test_a_smaller_burst_holds_at_once(shard: Shard) -> None:
    fill(shard, "a", gates=rate(burst=50))
    claim_all(shard)
    shard.tune("limit", RATE, "10,1000,2")
    fill(shard, *"bcdef", gates=rate(burst=50))

    assert claim_all(shard) == ["b", "c"]
