"""Breakers: a dependency that fails is left alone, then tried by few, then opened by a ramp."""

from __future__ import annotations

from typing import Any

import pytest

from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from tests.lua.driver import LEASE, Shard, job
from tests.lua.gating import holders as holders_of
from tests.lua.gating import ids, waiters
from tests.lua.test_ramps import waken

BREAKER = "breaker:dependency:carrier"
#: Half of at least 10 calls within 10 s; open for 1 s, then 2 at a time may try; opens over 4 s.
RULES = "50,10,10000,1000,2,4000"
CARRIER = f"0 pause:dependency:carrier {BREAKER}|{RULES}"
OPEN_MS, RAMP_MS = 1000, 4000
RETRY = Retry(0, ErrorClass.TRANSIENT, "timeout", "x", "p")
LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "", "-", Reason.RECOVERED)


def fill(shard: Shard, *names: str, gates: str = CARRIER, **options: Any) -> None:
    shard.enqueue(*(job(name, gates=gates, **options) for name in names))


def report(shard: Shard, ok: int = 0, errors: int = 0, timeouts: int = 0, name: str = BREAKER) -> None:
    """The calls that a worker has heard the end of."""
    if "w1" not in shard.sessions:
        shard.session("w1")
    shard.exchange(calls=f"{name} {ok} {errors} {timeouts}")


def state(shard: Shard) -> str:
    """The first word of the breaker's line; `closed` without one."""
    text = shard.look().strings.get("breakers", b"").decode()
    lines = dict(line.split(" ", 1) for line in text.splitlines())
    return lines[BREAKER].split(" ")[0] if BREAKER in lines else "closed"


def holders(shard: Shard) -> dict[str, str]:
    return holders_of(shard, BREAKER)


def trip(shard: Shard) -> None:
    shard.declare(**{BREAKER: RULES})
    report(shard, errors=10)
    assert state(shard) == "open"


def half_open(shard: Shard, *names: str) -> None:
    """Those jobs wait at it, and its time is over."""
    trip(shard)
    fill(shard, *names)
    shard.claim()
    shard.elapse(OPEN_MS)
    waken(shard)
    assert state(shard) == "half_open"


# --- opening ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ok", "errors", "timeouts", "then"),
    [
        pytest.param(5, 5, 0, "open", id="half of them"),
        pytest.param(5, 0, 5, "open", id="a timeout is a failure"),
        pytest.param(5, 3, 2, "open", id="errors and timeouts together"),
        pytest.param(6, 5, 0, "closed", id="less than half"),
        pytest.param(0, 9, 0, "closed", id="too few calls to judge"),
        pytest.param(100, 0, 0, "closed", id="all is well"),
    ],
)
def test_it_opens_by_the_share_of_failed_calls(
    shard: Shard, ok: int, errors: int, timeouts: int, then: str
) -> None:
    shard.declare(**{BREAKER: RULES})

    report(shard, ok, errors, timeouts)

    assert state(shard) == then


def test_reports_of_all_workers_add_up(shard: Shard) -> None:
    shard.declare(**{BREAKER: RULES})
    for worker in ("w1", "w2"):
        shard.session(worker)
        shard.exchange(worker=worker, calls=f"{BREAKER} 0 5 0")

    assert state(shard) == "open"


def test_what_is_older_than_the_window_counts_no_more(shard: Shard) -> None:
    shard.declare(**{BREAKER: RULES})
    report(shard, errors=9)
    shard.elapse(10_000)

    report(shard, errors=9)

    assert state(shard) == "closed"


def test_what_is_within_the_window_counts(shard: Shard) -> None:
    shard.declare(**{BREAKER: RULES})
    shard.now -= shard.now % 10_000  # at the beginning of a half
    report(shard, errors=9)
    shard.elapse(5000)

    report(shard, errors=1)

    assert state(shard) == "open"


def test_what_nobody_declares_has_no_breaker(shard: Shard) -> None:
    report(shard, errors=100)

    assert state(shard) == "closed"
    assert "breakers" not in shard.look().ttls


def test_counts_go_with_their_window(shard: Shard) -> None:
    shard.declare(**{BREAKER: RULES})
    report(shard, ok=1)

    assert 0 < shard.look().ttls["breaker:dependency:carrier"] <= 20_000


def test_the_log_says_why_it_opened(shard: Shard) -> None:
    shard.declare(**{BREAKER: RULES})
    report(shard, ok=4, errors=5, timeouts=1)

    last = list(shard.look().streams["events"].values())[-1]
    assert (last[b"s"], last[b"w"]) == (b"exchange", b"w1")
    assert last[b"a"] == f"- 0 open {BREAKER} - 6 of 10 calls failed".encode()


# --- while it is open -------------------------------------------------------------------------------------


def test_who_uses_it_waits_without_slot_and_attempt_and_the_rest_runs(shard: Shard) -> None:
    trip(shard)
    fill(shard, "a", "b")
    fill(shard, "other", gates="0 pause:dependency:bank breaker:dependency:bank|" + RULES)
    fill(shard, "plain", gates="")

    assert ids(shard.claim()) == ["other", "plain"]

    assert waiters(shard, BREAKER) == ["a", "b"]
    shard.check("a", status="queued", attempt=0, starts=0, owner=None)


def test_the_call_that_opens_it_claims_nothing_more_for_it(shard: Shard) -> None:
    shard.declare(**{BREAKER: RULES})
    fill(shard, *"abc")
    claims = shard.claim(limit=2)
    rows = [(f"S {claim.fence} 0 returned", claim.job_id, b"") for claim in claims]

    _, more, _ = shard.exchange(*rows, limit=5, calls=f"{BREAKER} 0 10 0")

    assert more == []
    assert waiters(shard, BREAKER) == ["c"]


def test_what_was_under_way_is_not_judged(shard: Shard) -> None:
    trip(shard)
    before = shard.look().strings["breakers"]

    report(shard, errors=100)
    report(shard, ok=100)

    assert shard.look().strings["breakers"] == before


def test_nobody_passes_before_its_time(shard: Shard) -> None:
    trip(shard)
    fill(shard, "a")
    shard.claim()
    shard.elapse(OPEN_MS - 1)
    waken(shard)

    assert shard.claim() == []
    assert waiters(shard, BREAKER) == ["a"]


# --- trials -----------------------------------------------------------------------------------------------


def test_after_its_time_few_try(shard: Shard) -> None:
    half_open(shard, *"abcd")

    assert holders(shard) == {"a": "granted", "b": "granted"}
    assert ids(shard.claim()) == ["a", "b"]
    assert holders(shard) == {"a": "runs", "b": "runs"}
    fill(shard, "e")
    assert shard.claim() == []


def test_who_comes_when_its_time_is_over_may_try(shard: Shard) -> None:
    """Nobody waited, so no timer had anything to do."""
    trip(shard)
    shard.elapse(OPEN_MS)
    fill(shard, *"abc")

    assert ids(shard.claim()) == ["a", "b"]
    assert waiters(shard, BREAKER) == ["c"]


def test_a_trial_that_fails_opens_it_again_for_twice_as_long(shard: Shard) -> None:
    half_open(shard, *"abc")
    a, b = shard.claim()
    report(shard, errors=1)
    for claim in (a, b):
        shard.settle(claim, RETRY)

    assert state(shard) == "open"
    assert shard.claim() == []
    shard.elapse(2 * OPEN_MS - 1)
    waken(shard)
    assert state(shard) == "open"
    shard.elapse(1)
    waken(shard)
    assert state(shard) == "half_open"
    assert len(shard.claim()) == 2


def test_it_stays_open_eight_times_as_long_at_most(shard: Shard) -> None:
    trip(shard)
    times = []
    for _ in range(6):
        began = shard.now
        while state(shard) == "open":
            shard.elapse(OPEN_MS)
            waken(shard)
        times.append((shard.now - began) // OPEN_MS)
        report(shard, timeouts=1)

    assert times == [1, 2, 4, 8, 8, 8]


def test_a_failed_trial_beats_one_that_went_well(shard: Shard) -> None:
    half_open(shard, *"ab")
    shard.claim()

    report(shard, ok=5, errors=1)

    assert state(shard) == "open"


@pytest.mark.parametrize(
    "outcome", [Success(), Fail(ErrorClass.PERSISTENT, "bad", "x"), Release(Reason.SHUTDOWN)]
)
def test_a_trial_that_called_nothing_leaves_its_place_to_the_next(shard: Shard, outcome: Outcome) -> None:
    half_open(shard, *"abc")
    a, _ = shard.claim()

    shard.settle(a, outcome)

    assert state(shard) == "half_open"
    assert holders(shard)["c"] == "granted"


def test_a_trial_whose_worker_died_leaves_its_place(shard: Shard) -> None:
    shard.pass_hold()
    half_open(shard, *"abc")
    shard.claim()
    shard.elapse(LEASE)

    for candidate in shard.found_dead("normal", "r"):
        shard.recovery(candidate, LOST)

    assert "c" in holders(shard)


def test_a_trial_that_nobody_claims_goes_to_the_next(shard: Shard) -> None:
    half_open(shard, *"abc")
    shard.elapse(5000)
    waken(shard)

    assert holders(shard) == {"c": "granted"}
    assert ids(shard.claim()) == ["a", "b"], "who stood before it takes its place over"


def test_a_place_that_nobody_holds_does_not_keep_it_half_open(shard: Shard) -> None:
    """An error in the middle of a script may leave one behind (D13)."""
    half_open(shard)
    for name in ("ghost", "shadow"):
        shard.redis("ZADD", shard.keys.gate(BREAKER), "5", name)
        shard.tampered.add(name)
    fill(shard, "a")

    assert ids(shard.claim()) == ["a"]


def test_what_was_let_in_and_not_claimed_waits_again_when_it_opens(shard: Shard) -> None:
    half_open(shard, *"ab")
    report(shard, errors=1)

    assert shard.claim() == []
    assert waiters(shard, BREAKER) == ["a", "b"]
    assert holders(shard) == {}


def test_one_good_call_is_not_enough(shard: Shard) -> None:
    half_open(shard, "a")
    report(shard, ok=1)
    assert state(shard) == "half_open"
    report(shard, ok=1)

    assert state(shard) == "closed"


# --- closing ----------------------------------------------------------------------------------------------


def test_trials_that_go_well_let_the_others_in_by_a_ramp(shard: Shard) -> None:
    half_open(shard, *(f"j{i}" for i in range(42)))
    assert len(shard.claim()) == 2
    shard.watchful = False

    report(shard, ok=2)

    assert state(shard) == "closing"
    counts = []
    for _ in range(RAMP_MS // 500):
        shard.elapse(500)
        waken(shard)
        counts.append(len(shard.claim()))
    assert all(3 <= count <= 7 for count in counts), counts
    assert sum(counts) == 40
    assert state(shard) == "closed"


def test_it_closes_at_once_when_nobody_waits(shard: Shard) -> None:
    half_open(shard, "a")
    shard.claim()

    report(shard, ok=2)

    assert state(shard) == "closed"
    assert "breakers" not in shard.look().ttls


def test_trials_that_run_on_when_it_closes_hold_nothing_in_the_end(shard: Shard) -> None:
    half_open(shard, *"ab")
    a, b = shard.claim()
    report(shard, ok=2)
    for claim in (a, b):
        shard.settle(claim, Success())

    assert holders(shard) == {}
    assert state(shard) == "closed"


def test_who_was_let_in_to_try_holds_nothing_of_a_closed_one(shard: Shard) -> None:
    half_open(shard, *"ab")
    report(shard, ok=2)

    assert ids(shard.claim()) == ["a", "b"]
    assert holders(shard) == {}


def test_it_opens_again_from_its_ramp(shard: Shard) -> None:
    half_open(shard, *(f"j{i}" for i in range(20)))
    shard.claim()
    report(shard, ok=2)
    report(shard, ok=5, errors=10)

    assert state(shard) == "open"
    shard.elapse(OPEN_MS)
    waken(shard)
    assert state(shard) == "half_open", "it had closed, so it is open for the shortest time again"


def test_who_comes_during_the_ramp_goes_behind_and_lets_one_in(shard: Shard) -> None:
    half_open(shard, *(f"j{i}" for i in range(20)))
    shard.claim()
    report(shard, ok=2)
    shard.claim()
    fill(shard, "late")

    assert shard.claim() == []
    assert "late" in waiters(shard, BREAKER)
    assert len(shard.claim()) == 1


# --- operators --------------------------------------------------------------------------------------------


def test_an_operator_opens_it_whatever_the_calls_say(shard: Shard) -> None:
    shard.declare(**{BREAKER: RULES})
    shard.tune("open", BREAKER, "0 0")
    report(shard, ok=100)
    fill(shard, "a")
    shard.elapse(100 * OPEN_MS)
    waken(shard)

    assert shard.claim() == []
    assert state(shard) == "open"


def test_an_operator_may_open_it_for_a_time(shard: Shard) -> None:
    fill(shard, "a")
    shard.tune("open", BREAKER, "3000 0")
    assert shard.claim() == []
    shard.elapse(3000)
    waken(shard)

    assert state(shard) == "half_open"
    assert ids(shard.claim()) == ["a"]


def test_an_operator_closes_it_whatever_the_calls_say(shard: Shard) -> None:
    trip(shard)
    fill(shard, "a")
    shard.claim()

    shard.tune("close", BREAKER, "0 4000")
    report(shard, errors=100)
    waken(shard)

    assert state(shard) == "closed"
    assert shard.look().strings["breakers"]
    assert ids(shard.claim()) == ["a"]


def test_a_breaker_that_was_closed_by_hand_opens_by_its_ramp(shard: Shard) -> None:
    trip(shard)
    fill(shard, *(f"j{i}" for i in range(40)))
    shard.claim()

    shard.tune("close", BREAKER, "0 4000")
    waken(shard)
    assert len(shard.claim()) == 1
    shard.elapse(2000)
    waken(shard)

    assert 18 <= len(shard.claim()) <= 20


def test_a_word_that_has_run_out_leaves_it_to_the_calls(shard: Shard) -> None:
    shard.declare(**{BREAKER: RULES})
    shard.tune("close", BREAKER, "3000 0")
    shard.elapse(3000)

    report(shard, errors=10)

    assert state(shard) == "open"


def test_it_is_left_to_the_calls_again(shard: Shard) -> None:
    shard.declare(**{BREAKER: RULES})
    shard.tune("open", BREAKER, "0 0")
    assert shard.tune("auto", BREAKER, "") == "OK"
    assert state(shard) == "half_open"
    shard.tune("close", BREAKER, "0 0")
    assert shard.tune("auto", BREAKER, "") == "OK"
    assert "breakers" not in shard.look().ttls
    assert shard.tune("auto", BREAKER, "") == "NOTHING"


def test_who_forced_it_and_why_is_in_the_log(shard: Shard) -> None:
    shard.tune("open", BREAKER, "60000 0", "they said so")

    last = list(shard.look().streams["events"].values())[-1]
    assert (last[b"s"], last[b"w"]) == (b"tune", b"operator")
    assert last[b"a"] == f"- 0 open {BREAKER} 60000 0 they said so".encode()
    assert shard.look().strings["breakers"].endswith(b"operator they said so")


# --- with others ------------------------------------------------------------------------------------------


def test_a_trial_that_a_later_gate_stops_leaves_its_place(shard: Shard) -> None:
    trip(shard)
    fill(shard, "lock", gates="0 entity:order:7")
    shard.claim()
    fill(shard, "a", gates=f"0 {BREAKER}|{RULES} entity:order:7")
    fill(shard, "b", "c")
    shard.claim()
    shard.elapse(OPEN_MS)
    waken(shard)

    shard.claim()

    assert set(holders(shard)) == {"b", "c"}


def test_two_breakers_are_passed_by_one_job(shard: Shard) -> None:
    bank = "breaker:dependency:bank"
    shard.declare(**{BREAKER: RULES, bank: RULES})
    report(shard, errors=10)
    report(shard, errors=10, name=bank)
    shard.elapse(OPEN_MS)
    fill(shard, "a", gates=f"0 {bank}|{RULES} {BREAKER}|{RULES}")
    (a,) = shard.claim()

    assert holders(shard) == {"a": "runs"} == holders_of(shard, bank)
    shard.settle(a, Success())
    assert holders(shard) == {} == holders_of(shard, bank)


def test_other_figures_hold_for_jobs_that_wait(shard: Shard) -> None:
    trip(shard)
    fill(shard, *"abcd")
    shard.claim()
    shard.declare(**{BREAKER: "50,10,10000,1000,3,4000"})
    shard.elapse(OPEN_MS)
    waken(shard)

    assert len(holders(shard)) == 3


def test_a_clock_that_is_put_back_loses_no_count(shard: Shard) -> None:
    shard.declare(**{BREAKER: RULES})
    report(shard, errors=9)
    shard.now -= 20_000

    report(shard, errors=1)

    assert state(shard) == "open"


def test_one_that_opened_by_a_clock_that_was_ahead_is_tried_as_soon_as_another(shard: Shard) -> None:
    """Its time was over an hour after the clock was put right, and its dependency shut until then."""
    trip(shard)
    shard.now -= 3_600_000
    fill(shard, *"abc")
    shard.claim()

    shard.elapse(OPEN_MS - 1)
    waken(shard)
    assert state(shard) == "open"
    shard.elapse(1)
    waken(shard)

    assert state(shard) == "half_open"
    assert len(holders(shard)) == 2
