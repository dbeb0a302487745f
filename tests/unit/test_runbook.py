"""The diagnosis of a backlog is a pure function: each situation has its words and its commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from streamworker.core.lane import BACKLOG
from streamworker.ops.dlq.causes import Cause
from streamworker.ops.overload import Drain, Rate, Setting, Throttle
from streamworker.ops.runbook import Kind, State, Step, diagnose
from streamworker.ops.runbook.answer import Diagnosis
from streamworker.ops.runbook.held import way_back_of
from streamworker.ops.runbook.sight import Crowd, Held, Letters, Retries, Service, Sight
from streamworker.ops.top import LaneRow
from streamworker.ops.tune import Pause
from tests.unit.test_docs import resolve

NOON = 1_784_894_400_000
ANN = "ann@ops"
HUNDRED = Rate(100, 1000, 100)
HOSTILE = "\x1b]0;owned\x07`rm`|$(x)"


def row(lane: str, **figures: Any) -> LaneRow:
    """A lane in which nothing waits, unless said otherwise."""
    quiet: dict[str, Any] = {
        "ready": 0, "parked": 0, "scheduled": 0, "in_flight": 2, "oldest": None, "target": 10.0,
        "paused": False, "pressure": "ok", "came_in": 5.0, "went_out": 5.0,
    }  # fmt: skip
    return LaneRow(lane=lane, **(quiet | figures))


def backlog(depth: int, *, on: bool = True, rate: Rate = HUNDRED, paused: bool = False, **more: Any) -> Drain:
    lanes: dict[str, tuple[int, int | None]] = {"normal": (depth, 60_000)} if depth else {}
    return Drain(on, rate, HUNDRED, more.get("set"), paused, lanes)


LATE = row("normal", ready=4000, oldest=90.0, came_in=80.0, went_out=20.0)
URGENT = row("priority", ready=50, oldest=30.0, came_in=5.0, went_out=2.0)
QUIET = Sight(
    app="shop",
    at=NOON,
    lanes=(row("normal"), row("priority")),
    workers=2,
    slots=32,
    least=16,
    serving={"normal": 2, "priority": 2},
    drain=backlog(0),
    services=(Service("carrier", frozenset({"ship"}), ok=100, failed=1, running=2, limit=20),),
)


def words(diagnosis: Diagnosis, step: Step, *kinds: Kind) -> list[str]:
    """The commands of a step, without the app and the reason."""
    found = []
    for command in diagnosis.told(step).of(*(kinds or (Kind.CHANGE,))):
        said = list(command.words)
        for option in ("--reason", "--app"):
            if option in said:
                place = said.index(option)
                del said[place : place + 2]
        found.append(" ".join(said))
    return found


def why(diagnosis: Diagnosis) -> dict[str, str]:
    return {str(told.step): told.why for told in diagnosis.steps}


def pause(scope: str, **more: Any) -> Pause:
    return Pause(**({"scope": scope, "state": "paused", "until": None, "by": ANN, "since": NOON,
                     "reason": "a deploy"} | more))  # fmt: skip


def cause(task: str, code: str, count: int, error: str = "Boom: no") -> Cause:
    return Cause(task, "persistent", code, count, NOON, NOON, error, ["01a22d35-48c5-7000-ab2c-b8855784618b"])


# --- situations ------------------------------------------------------------------------------------------


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


def service(**facts: Any) -> Service:
    return Service("carrier", frozenset({"ship"}), **facts)


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

    assert "would only call carrier more" in ill.told(Step.LANE).says[-1]
    assert "more workers help" in well.told(Step.LANE).says[-1]
    assert "not for want of workers" in idle.told(Step.LANE).says[-1]


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

    assert "empty in 1m30s" in " ".join(empties.told(Step.DRAIN).says)
    assert "less than comes in" in " ".join(grows.told(Step.DRAIN).says)


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


def test_what_operators_have_set_is_taken_back_by_hand() -> None:
    held = Held("tenant:acme is throttled", ANN, "noise", ("throttle", "tenant:acme", "--off"))
    found = diagnose(replace(QUIET, held=(held,)))

    assert found.stable
    assert words(found, Step.NOTE, Kind.CHANGE, Kind.LOOK) == []
    assert words(found, Step.NOTE, Kind.LATER) == ["throttle tenant:acme --off"]


@pytest.mark.parametrize(
    ("step", "below", "above"),
    [
        (
            Step.LANE,
            {"lanes": (row("normal", ready=1, oldest=10.0),)},
            {"lanes": (row("normal", ready=1, oldest=10.1),)},
        ),
        (
            Step.LANE,
            {"lanes": (row("normal", ready=99, target=None, came_in=9.0),)},
            {"lanes": (row("normal", ready=100, target=None, came_in=9.0),)},
        ),
        (
            Step.DEPENDENCY,
            {"lanes": (LATE,), "services": (service(running=19),)},
            {"lanes": (LATE,), "services": (service(running=20),)},
        ),
        (
            Step.DEPENDENCY,
            {"services": (service(ok=81, failed=19),)},
            {"services": (service(ok=80, failed=20),)},
        ),
        (
            Step.DEPENDENCY,
            {"services": (service(failed=9),)},
            {"services": (service(failed=10),)},
        ),
        (
            Step.THROTTLE,
            {"lanes": (replace(LATE, came_in=1.0),), "crowds": {"normal": Crowd({"acme": 2000})}},
            {"lanes": (replace(LATE, came_in=1.0),), "crowds": {"normal": Crowd({"acme": 2001})}},
        ),
        (
            Step.RETRIES,
            {"retries": Retries(49, 49, {("ship", "boom"): 49})},
            {"retries": Retries(50, 50, {("ship", "boom"): 50})},
        ),
        (
            Step.RETRIES,
            {"retries": Retries(500, 5000, {("ship", "boom"): 124})},
            {"retries": Retries(500, 5000, {("ship", "boom"): 125})},
        ),
        (
            Step.LETTERS,
            {"letters": Letters(19, 0.4, (cause("ship", "boom", 19),))},
            {"letters": Letters(20, 0.4, (cause("ship", "boom", 20),))},
        ),
        (Step.LETTERS, {"letters": Letters(5, 0.4)}, {"letters": Letters(5, 0.5)}),
    ],
)
def test_a_mark_is_passed_where_it_is_and_not_before(
    step: Step, below: dict[str, Any], above: dict[str, Any]
) -> None:
    calm = {"quiet", "well", "nothing_to_cut", "calm", "some"}

    assert diagnose(replace(QUIET, **below)).told(step).why in calm
    assert diagnose(replace(QUIET, **above)).told(step).why not in calm


# --- form ------------------------------------------------------------------------------------------------


def worst(name: str) -> Sight:
    """Everything is wrong, and all names are that name."""
    return replace(
        QUIET,
        lanes=(LATE, URGENT),
        crowds={"normal": Crowd({name: 3900}, {name: 3900})},
        services=(Service(name, frozenset({name}), failed=50),),
        retries=Retries(100, 100, {(name, name): 90}),
        letters=Letters(500, 4.0, (cause(name, name, 480, name),)),
        held=(Held(f"{name} is paused", name, name, ("resume", f"task:{name}")),),
    )


def test_every_change_names_its_app_and_its_reason() -> None:
    found = diagnose(worst("ship"))

    changes = [command for told in found.steps for command in told.of(Kind.CHANGE)]
    assert len(changes) == 4
    for command in changes:
        said: Mapping[str, str] = dict(zip(command.words, command.words[1:], strict=False))
        assert said["--app"] == "shop"
        assert said["--reason"].startswith("runbook: ")


@pytest.mark.parametrize(
    "sight",
    [
        worst("ship"),
        replace(worst("ship"), services=(), letters=Letters(9, 0.0, (cause("mail", "boom", 9),))),
        replace(worst("ship"), services=(service(running=30, limit=30),), least=1),
        replace(QUIET, drain=backlog(900, on=False)),
        replace(QUIET, drain=backlog(900, paused=True)),
        replace(QUIET, drain=backlog(900, rate=Rate(50, 1000, 50))),
        replace(QUIET, lanes=(LATE, row("priority")), drain=backlog(900)),
        replace(QUIET, lanes=(row("priority", paused=True),), pauses=(pause("lane:priority"),)),
        replace(QUIET, held=tuple(
            Held("x", ANN, "-", undo)
            for topic in ("pause", "limit", "throttle", "drain", "slots", "retries", "breaker")
            if (undo := way_back_of(topic, "normal")) is not None
        )),
    ],
)  # fmt: skip
def test_every_command_can_be_typed(sight: Sight) -> None:
    found = [command for told in diagnose(sight).steps for command in told.commands]

    assert found
    for each in found:
        command, arguments = resolve(list(each.words))
        command.make_context(command.name, arguments)


def test_a_command_is_shown_as_a_shell_takes_it() -> None:
    for told in diagnose(worst("o'brien")).steps:
        for command in told.commands:
            assert shlex.split(command.line) == ["streamworker", *command.words]


def test_names_that_no_command_line_can_carry_are_in_none() -> None:
    for told in diagnose(worst(HOSTILE)).steps:
        for command in told.commands:
            assert not any(HOSTILE in word for word in command.words)
            assert command.line.isprintable()


def test_the_same_figures_always_give_the_same_advice() -> None:
    assert diagnose(worst("x")).json() == diagnose(worst("x")).json()
    assert json.loads(json.dumps(diagnose(worst(HOSTILE)).json()))["steps"][0]["number"] == 1
