"""The diagnosis of a backlog is a pure function: each situation has its words and its commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamworker.core.lane import BACKLOG
from streamworker.ops.overload import Drain, Rate, Setting, Throttle
from streamworker.ops.runbook import Kind, State, Step, diagnose
from streamworker.ops.runbook.sight import Crowd, Held, Letters, Retries, Sight
from tests.unit.sights import (
    ANN,
    LATE,
    NOON,
    QUIET,
    URGENT,
    backlog,
    cause,
    pause,
    row,
    service,
    why,
    words,
)


def test_in_a_quiet_system_there_is_nothing_to_do() -> None:
    found = diagnose(QUIET)

    assert found.stable
    assert found.critical == "priority"
    assert [told.step for told in found.steps] == list(Step)
    assert why(found) == {
        "lane": "quiet",
        "dependency": "well",
        "throttle": "nothing_to_cut",
        "critical": "on_target",
        "drain": "empty",
        "retries": "calm",
        "letters": "none",
        "replay": "nothing",
        "note": "nothing_set",
    }
    assert all(told.state is State.OK and not told.of(Kind.CHANGE, Kind.LATER) for told in found.steps)


def test_of_nothing_at_all_it_says_that_no_worker_is_there() -> None:
    found = diagnose(Sight(app="shop", at=NOON))

    assert (found.told(Step.LANE).why, found.told(Step.CRITICAL).why) == ("no_worker", "none")
    assert found.critical is None


def test_workers_gone() -> None:
    found = diagnose(replace(QUIET, workers=0, slots=0, least=0, serving={}, lanes=(LATE, URGENT)))

    assert found.told(Step.LANE).why == "no_worker"
    assert "streamworker run" in found.told(Step.LANE).says[0]
    assert found.told(Step.CRITICAL).why == "not_served"
    assert not found.stable


def test_a_lane_that_nobody_serves() -> None:
    found = diagnose(replace(QUIET, lanes=(LATE, row("priority")), serving={"priority": 2}))

    assert found.told(Step.LANE).why == "not_served"
    assert "serves lane normal" in found.told(Step.LANE).says[0]


def test_a_paused_lane_is_said_with_who_did_it_and_is_not_late() -> None:
    paused = replace(LATE, paused=True)
    found = diagnose(replace(QUIET, lanes=(paused, row("priority")), pauses=(pause("lane:normal"),)))

    assert found.told(Step.LANE).why == "paused"
    assert f"paused by {ANN}" in found.told(Step.LANE).says[0]
    assert words(found, Step.THROTTLE) == []


def test_a_paused_critical_lane_is_resumed() -> None:
    lanes = (row("normal"), row("priority", ready=3, paused=True))
    found = diagnose(replace(QUIET, lanes=lanes, pauses=(pause("lane:priority"),)))

    assert found.told(Step.CRITICAL).why == "paused"
    assert words(found, Step.CRITICAL) == ["resume lane:priority"]
    assert "a deploy" in found.told(Step.CRITICAL).says[1]


def test_a_lane_that_gets_too_much_is_throttled() -> None:
    found = diagnose(replace(QUIET, lanes=(LATE, row("priority")), crowds={
        "normal": Crowd({"": 100}, {"resize": 3900, "mail": 100})}))  # fmt: skip

    assert why(found)["throttle"] == "lane_floods"
    assert words(found, Step.THROTTLE) == ["throttle lane:normal --rate 16/s --for 30m"]
    assert "3900 of the 4000 that wait are of task resize" in found.told(Step.THROTTLE).says[0]


def test_the_critical_lane_itself_is_not_throttled() -> None:
    found = diagnose(replace(QUIET, lanes=(row("normal"), URGENT)))

    assert words(found, Step.THROTTLE) == []
    assert "Lane(accept=…)" in found.told(Step.THROTTLE).says[1]


def test_one_tenant_floods() -> None:
    crowds = {"normal": Crowd({"acme": 3800, "quiet": 10})}
    found = diagnose(replace(QUIET, lanes=(LATE, row("priority")), crowds=crowds))

    assert why(found)["throttle"] == "tenant_floods"
    assert words(found, Step.THROTTLE) == ["throttle tenant:acme --rate 5/s --overflow backlog --for 30m"]


def test_a_flood_that_is_over_is_not_cut() -> None:
    crowds = {"normal": Crowd({"acme": 3800})}
    over = replace(LATE, came_in=0.0)
    found = diagnose(replace(QUIET, lanes=(over, row("priority")), crowds=crowds))

    assert why(found)["throttle"] == "nothing_to_cut"


def test_a_tenant_that_is_throttled_is_not_throttled_again() -> None:
    stands = Throttle("tenant:acme", Rate(5, 1000, 5), "backlog", Setting(ANN, NOON, "-"))
    crowds = {"normal": Crowd({"acme": 3800})}
    sight = replace(QUIET, lanes=(LATE, row("priority")), crowds=crowds, throttles=(stands,))

    assert words(diagnose(sight), Step.THROTTLE) == []
    assert f"by {ANN}" in diagnose(sight).told(Step.THROTTLE).says[1]


def test_a_tenant_whose_overflow_floods_the_backlog_is_refused() -> None:
    stands = Throttle("tenant:acme", Rate(5, 1000, 5), "backlog", Setting(ANN, NOON, "-"))
    sight = replace(
        QUIET, crowds={BACKLOG: Crowd({"acme": 900})}, drain=backlog(1000), deferred=50.0, throttles=(stands,)
    )

    assert words(diagnose(sight), Step.THROTTLE) == [
        "throttle tenant:acme --rate 1/m --overflow reject --for 30m"
    ]


def test_a_late_critical_lane_gets_slots() -> None:
    found = diagnose(replace(QUIET, lanes=(LATE, URGENT)))

    assert words(found, Step.CRITICAL) == ["slots priority --reserved 8 --clamp --weight 16 --for 30m"]


def test_a_worker_of_one_slot_can_reserve_none() -> None:
    found = diagnose(replace(QUIET, lanes=(LATE, URGENT), slots=2, least=1))

    assert words(found, Step.CRITICAL) == ["slots priority --weight 16 --for 30m"]


def test_what_was_done_is_not_proposed_again() -> None:
    seen = Retries(200, 4000, {("ship", "timeout"): 120})
    done = replace(
        QUIET, lanes=(LATE, URGENT), retries=seen, favoured={"priority": "weight 16, by ann@ops"},
        calmed={"ship": "waits times 3, by ann@ops"},
    )  # fmt: skip

    assert (why(diagnose(done))["critical"], why(diagnose(done))["retries"]) == ("favoured", "calmed")
    assert words(diagnose(done), Step.CRITICAL) == words(diagnose(done), Step.RETRIES) == []
    assert "by ann@ops" in diagnose(done).told(Step.CRITICAL).says[1]


def test_slots_do_not_help_a_lane_that_waits_at_gates() -> None:
    found = diagnose(replace(QUIET, lanes=(LATE, replace(URGENT, ready=1, parked=49))))

    assert why(found)["critical"] == "at_gates"
    assert words(found, Step.CRITICAL) == []
    assert words(found, Step.CRITICAL, Kind.LOOK) == ["gates"]


def test_another_lane_may_be_the_critical_one() -> None:
    lanes = (replace(LATE, lane="checkout"), row("priority"))
    found = diagnose(replace(QUIET, lanes=lanes, serving={"checkout": 2, "priority": 2}), "checkout")

    assert found.critical == "checkout"
    assert words(found, Step.CRITICAL) == ["slots checkout --reserved 8 --clamp --weight 16 --for 30m"]
    assert "no lane nowhere" in diagnose(QUIET, "nowhere").told(Step.CRITICAL).says[0]


def test_without_a_priority_lane_the_most_urgent_is_critical() -> None:
    lanes = (row("bulk", target=None), row("fast", target=1.0), row("slow", target=60.0))

    assert diagnose(replace(QUIET, lanes=lanes)).critical == "fast"


@pytest.mark.parametrize(
    ("facts", "expected", "commands"),
    [
        ({"ok": 5, "failed": 45}, "failing", ["pause dependency:carrier --for 10m"]),
        (
            {"ok": 30, "failed": 20, "limit": 20},
            "failing",
            ["limits set concurrency:dependency:carrier 8 --for 30m"],
        ),
        ({"ok": 30, "failed": 20}, "failing", ["pause dependency:carrier --for 10m"]),
        ({"running": 30}, "slow", ["pause dependency:carrier --for 10m"]),
        ({"running": 30, "limit": 30}, "slow", ["limits set concurrency:dependency:carrier 8 --for 30m"]),
        ({"running": 30, "limit": 8}, "slow", []),
        ({"state": "open", "ok": 0, "failed": 20, "waiting": 900}, "open", []),
        ({"state": "half_open", "by": None}, "open", []),
        ({"ok": 1, "failed": 4}, "well", []),
    ],
)
def test_a_dependency(facts: dict[str, Any], expected: str, commands: list[str]) -> None:
    found = diagnose(replace(QUIET, lanes=(LATE, row("priority")), services=(service(**facts),)))

    assert why(found)["dependency"] == expected
    assert words(found, Step.DEPENDENCY) == commands


def test_while_a_dependency_is_ill_more_workers_are_advised_against() -> None:
    ill = diagnose(replace(QUIET, lanes=(replace(LATE, in_flight=32),), services=(service(running=30),)))
    well = diagnose(replace(QUIET, lanes=(replace(LATE, in_flight=32),)))
    idle = diagnose(replace(QUIET, lanes=(replace(LATE, in_flight=3),)))
    gated = diagnose(replace(QUIET, lanes=(replace(LATE, in_flight=3, ready=10, parked=4000),)))
    open_now = service(state="open", failed=20)
    apart = diagnose(replace(QUIET, lanes=(replace(LATE, in_flight=32),), services=(open_now,)))

    assert "would only call carrier more" in ill.told(Step.LANE).says[-1]
    assert "more workers help" in well.told(Step.LANE).says[-1]
    assert "not for want of workers" in gated.told(Step.LANE).says[-1]
    assert "may be reserved for other lanes" in idle.told(Step.LANE).says[-1], (
        "or served by nobody who is idle"
    )
    assert "would only call" not in apart.told(Step.LANE).says[-1], "its breaker lets nobody call it"


def test_a_dependency_that_an_operator_has_paused_is_left_so() -> None:
    sight = replace(QUIET, services=(service(failed=50),), pauses=(pause("dependency:carrier"),))

    assert why(diagnose(sight))["dependency"] == "paused"
    assert words(diagnose(sight), Step.DEPENDENCY) == []


def test_no_dependency_declared() -> None:
    assert why(diagnose(replace(QUIET, services=())))["dependency"] == "none_declared"


@pytest.mark.parametrize(
    ("drain", "late", "expected", "commands"),
    [
        (backlog(0, on=False), False, "empty", []),
        (backlog(900), False, "draining", []),
        (backlog(900), True, "too_fast", ["drain --rate 50/s --for 30m"]),
        (backlog(900, rate=Rate(50, 1000, 50)), True, "slowed", []),
        (backlog(900, rate=Rate(50, 1000, 50)), False, "may_be_faster", ["drain --rate 100/s --for 30m"]),
        (backlog(900, on=False), False, "off", ["drain --on --rate 50/s"]),
        (backlog(900, on=False, rate=Rate(7, 1000, 7)), False, "off", ["drain --on"]),
        (backlog(900, on=False), True, "held_back", []),
        (backlog(900, paused=True), False, "off", ["resume lane:backlog"]),
        (Drain(True, None, None, None, False, {"normal": (5, None)}), False, "no_rate", []),
    ],
)
def test_the_drain(drain: Drain, late: bool, expected: str, commands: list[str]) -> None:
    lanes = (LATE if late else row("normal"), row("priority"))
    found = diagnose(replace(QUIET, lanes=lanes, drain=drain))

    assert why(found)["drain"] == expected
    assert words(found, Step.DRAIN) == commands


def test_how_long_the_backlog_takes_is_told() -> None:
    empties = diagnose(replace(QUIET, drain=backlog(9000)))
    grows = diagnose(replace(QUIET, drain=backlog(9000), deferred=200.0))

    assert "at most: empty in 1m30s or later" in " ".join(empties.told(Step.DRAIN).says)
    assert "less than comes in" in " ".join(grows.told(Step.DRAIN).says)


def test_without_a_worker_nothing_is_drained() -> None:
    found = diagnose(replace(QUIET, workers=0, slots=0, least=0, serving={}, drain=backlog(900)))

    assert why(found)["drain"] == "no_worker"
    assert "It is drained at" not in " ".join(found.told(Step.DRAIN).says)


def test_jobs_that_nobody_could_take_do_not_wait_for_a_slot() -> None:
    lanes = (row("normal"), row("bulk", ready=900), row("slow", ready=900, paused=True))
    sight = replace(QUIET, lanes=lanes, serving={"normal": 2, "slow": 2}, services=(service(running=30),))

    assert why(diagnose(sight))["dependency"] == "well"


def test_of_a_breaker_it_says_who_can_change_it() -> None:
    def said(**facts: Any) -> str:
        return " ".join(diagnose(replace(QUIET, services=(service(**facts),))).told(Step.DEPENDENCY).says)

    forced = said(state="open", by=ANN, waiting=1)
    tried = said(state="half_open")

    assert f"is open by {ANN}; 1 job waits" in forced
    assert "step 9" in forced
    assert "nothing to do" not in forced
    assert tried.startswith("The breaker of carrier is half open; 0 jobs wait")
    assert said() == "No dependency is ill: carrier no calls counted."


def test_a_storm_of_retries_is_calmed_once_for_each_task() -> None:
    seen = Retries(200, 4000, {("ship", "timeout"): 120, ("ship", "http_503"): 60, ("mail", "boom"): 3})
    found = diagnose(replace(QUIET, retries=seen, services=(service(failed=50),)))

    assert why(found)["retries"] == "storm"
    assert words(found, Step.RETRIES) == ["retries ship --multiply 3 --jitter 0.3 --for 30m"]
    assert "2400 jobs of ship wait for a retry, of timeout" in found.told(Step.RETRIES).says[0]
    assert "uses carrier: see step 2" in found.told(Step.RETRIES).says[1]


def test_delays_are_no_storm() -> None:
    assert why(diagnose(replace(QUIET, retries=Retries(500, 9000, {}))))["retries"] == "calm"


def test_a_surge_of_dead_letters_is_to_be_read_first() -> None:
    letters = Letters(500, 4.0, (cause("ship", "bad_total", 480), cause("mail", "boom", 2)))
    found = diagnose(replace(QUIET, letters=letters, keyed=frozenset({"ship"})))

    assert why(found)["letters"] == "surge"
    assert words(found, Step.LETTERS, Kind.LOOK)[0] == "dlq causes --newer 1h"
    assert words(found, Step.REPLAY, Kind.LOOK)[0] == (
        "dlq replay --task ship --code bad_total --newer 1h --dry-run"
    )
    assert why(found)["replay"] == "not_yet", "letters still come"
    assert words(found, Step.REPLAY) == []


def test_a_few_are_replayed_once_the_cause_is_gone() -> None:
    letters = Letters(500, 0.0, (cause("ship", "timeout", 480),))
    found = diagnose(replace(QUIET, letters=letters))

    assert words(found, Step.REPLAY) == ["dlq replay --task ship --code timeout --newer 1h --limit 20 --yes"]
    assert "declares no key=" in found.told(Step.REPLAY).says[0]


@pytest.mark.parametrize("by", ["dependency", "retries"])
def test_what_would_fail_again_is_not_replayed(by: str) -> None:
    letters = Letters(500, 0.0, (cause("ship", "timeout", 480),))
    sight = replace(QUIET, letters=letters)
    if by == "dependency":
        sight = replace(sight, services=(service(state="open"),))
    else:
        sight = replace(sight, retries=Retries(100, 100, {("ship", "timeout"): 90}))

    assert why(diagnose(sight))["replay"] == "not_yet"
    assert words(diagnose(sight), Step.REPLAY) == []


def test_a_task_that_died_of_several_causes_is_said_to_wait_once() -> None:
    letters = Letters(500, 0.0, (cause("ship", "timeout", 480), cause("ship", "refused", 20)))
    found = diagnose(replace(QUIET, letters=letters, services=(service(state="open"),)))

    says = found.told(Step.REPLAY).says
    assert [line for line in says if "not yet" in line] == ["ship: not yet, carrier is ill."]
    assert len([line for line in says if "declares no key=" in line]) == 1


def test_what_operators_have_set_is_taken_back_by_hand() -> None:
    held = Held("tenant:acme is throttled", ANN, "noise", ("throttle", "tenant:acme", "--off"))
    found = diagnose(replace(QUIET, held=(held,)))

    assert found.stable
    assert words(found, Step.NOTE, Kind.CHANGE, Kind.LOOK) == []
    assert words(found, Step.NOTE, Kind.LATER) == ["throttle tenant:acme --off"]
