"""Steps about lanes: which is late, what fills it, which comes first, and how the backlog is let in. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from streamworker.core.lane import BACKLOG
from streamworker.core.text import counted
from streamworker.ops.overload import Rate
from streamworker.ops.runbook.answer import Command, State, Told, listed, nameable
from streamworker.ops.runbook.case import ACUTE, FOR, Case
from streamworker.ops.runbook.whys import Step
from streamworker.ops.runbook.words import flow, pace, rate, span

#: Part of all slots in use from which on they count as full.
FULL = 0.9
#: Part of what leaves a lane that a flooding tenant, or a lane that gets too much, may still enqueue.
TENANT_PART, LANE_PART = 0.25, 0.8
#: Weight of the critical lane while it is favoured.
FAVOURED = 16


def lane(case: Case) -> Told:
    """Step 1: which lane is late, and whether anybody serves it."""
    sight, says = case.sight, list[str]()
    look = (case.look("lanes", why="what waits in each lane"),)
    if not sight.workers:
        says.append("No worker is alive: start some with `streamworker run MODULE:APP`; what waits is kept.")
        return Told(Step.LANE, State.ACT, "no_worker", tuple(says), look)
    for row in case.deserted:
        says.append(
            f"Of {counted(sight.workers, 'living worker')} none serves lane {row.lane}, where "
            f"{counted(row.ready, 'job')} {'waits' if row.ready == 1 else 'wait'}: start some with "
            "`streamworker run MODULE:APP`."
        )
    says += [f"Lane {row.lane}: {flow(row)}." for row in case.late]
    paused = [row for row in sight.lanes if row.paused]
    for row in paused:
        pause = sight.paused(f"lane:{row.lane}")
        by = "" if pause is None else f" by {pause.by}"
        says.append(f"Lane {row.lane} is paused{by}: {flow(row)}.")
    if not says:
        return Told(Step.LANE, State.OK, "quiet", ("No lane is late.",), look)
    if case.late:
        says.append(_workers(case))
    why = "not_served" if case.deserted else "late" if case.late else "paused"
    return Told(Step.LANE, State.LOOK if why == "paused" else State.ACT, why, tuple(says), look)


def _workers(case: Case) -> str:
    """Whether more workers would help: asked last, since the supply is cut first."""
    sight = case.sight
    used = f"{sight.in_flight} of {counted(sight.slots, 'slot')} are in use"
    if acute := sorted(name for name, illness in case.ill.items() if illness in ACUTE):
        return f"{used}. More workers would only call {listed(acute)} more."
    if sight.in_flight >= FULL * sight.slots:
        return f"{used} and no dependency is ill: if cutting the supply is not enough, more workers help."
    if all(row.parked > row.ready for row in case.late):
        return f"{used}: it is not for want of workers. Look at the gates."
    return (
        f"{used}. Those that are free may be reserved for other lanes, or of workers that do not serve this "
        "one: see `streamworker slots` and `streamworker workers`."
    )


def throttle(case: Case) -> Told:
    """Step 3: cut the supply where it floods, the tenant rather than the lane."""
    sight, says, commands = case.sight, list[str](), list[Command]()
    throttled = {one.scope: one for one in sight.throttles}
    look = case.look("throttle", why="what is throttled")
    fresh = False
    flooded = set()
    for name, tenant, count in case.floods:
        flooded.add(name)
        scope, row = f"tenant:{tenant}", sight.lane(name)
        of = "newest jobs in the backlog" if name == BACKLOG else f"jobs that wait in lane {name}"
        says.append(f"Tenant {tenant} has {count} of the {of}, and more come.")
        stands = throttled.get(scope)
        if stands is not None and (name != BACKLOG or stands.overflow == "reject"):
            says.append(f"{scope} is throttled already, to {stands.rate}, by {stands.set.by}.")
            continue
        fresh = True
        if not nameable(tenant):
            says.append("Its name cannot be typed: throttle the lane.")
            continue
        leaves = TENANT_PART * ((row.went_out if row is not None else None) or 0.0)
        beyond = "reject" if stands is not None else BACKLOG
        words = ("throttle", scope, "--rate", rate(leaves), "--overflow", beyond, "--for", FOR)
        if not any(each.words[:2] == words[:2] for each in commands):
            commands.append(case.change(*words, why=f"tenant {tenant} floods {_place(name)}"))
    for row in case.late:
        came, went = row.came_in or 0.0, row.went_out or 0.0
        if row.lane in flooded or came <= went:
            continue
        says.append(f"Lane {row.lane} gets {pace(came)}, and {pace(went)} leave it{_mostly(case, row.lane)}.")
        if stands := throttled.get(f"lane:{row.lane}"):
            says.append(f"It is throttled already, to {stands.rate}, by {stands.set.by}.")
        elif row.lane == case.critical:
            says.append("It is the critical lane: which tasks may use it is said by Lane(accept=…).")
        else:
            fresh = True
            cut = ("throttle", f"lane:{row.lane}", "--rate", rate(LANE_PART * went), "--for", FOR)
            commands.append(case.change(*cut, why=f"lane {row.lane} gets more than leaves it"))
    if not says:
        said = "No tenant and no lane gets more than it can bear."
        if not throttled:
            return Told(Step.THROTTLE, State.OK, "nothing_to_cut", (said,), (look,))
        says = [said, f"Throttled are {listed(sorted(throttled))}."]
        return Told(Step.THROTTLE, State.OK, "throttled", tuple(says), (look,))
    why = "tenant_floods" if case.floods else "lane_floods"
    if not fresh:
        return Told(Step.THROTTLE, State.LOOK, "throttled", tuple(says), (look,))
    return Told(Step.THROTTLE, State.ACT, why, tuple(says), (look, *commands))


def _place(name: str) -> str:
    return "the backlog" if name == BACKLOG else f"lane {name}"


def _mostly(case: Case, name: str) -> str:
    """Which task is most of it."""
    tasks: Mapping[str, int] = case.sight.crowds[name].tasks if name in case.sight.crowds else {}
    total = sum(tasks.values())
    if not total:
        return ""
    task = max(sorted(tasks), key=lambda each: tasks[each])
    return f"; {tasks[task]} of the {total} that wait are of task {task}"


def critical(case: Case) -> Told:
    """Step 4: the lane that matters most starts first."""
    sight = case.sight
    row = None if case.critical is None else sight.lane(case.critical)
    if row is None:
        said = "There is no lane yet." if case.critical is None else f"There is no lane {case.critical}."
        return Told(Step.CRITICAL, State.OK, "none", (said,))
    name, says = row.lane, [f"Lane {row.lane}: {flow(row)}."]
    if row.paused:
        pause = sight.paused(f"lane:{name}")
        by = "" if pause is None else f" by {pause.by}{f': {pause.reason}' if pause.reason != '-' else ''}"
        says.append(f"It is paused{by}. Nothing of it starts.")
        resume = case.change("resume", f"lane:{name}", why=f"lane {name} is the critical one")
        return Told(Step.CRITICAL, State.ACT, "paused", tuple(says), (resume,))
    if row not in case.late:
        return Told(Step.CRITICAL, State.OK, "on_target", tuple(says))
    if row.parked > row.ready:
        says.append("Most of it waits at gates, which more slots do not open.")
        return Told(Step.CRITICAL, State.ACT, "at_gates", tuple(says), (case.look("gates", why="who waits"),))
    if not sight.serving.get(name):
        says.append("Nobody serves it: start workers first.")
        return Told(Step.CRITICAL, State.ACT, "not_served", tuple(says))
    if name in sight.favoured:
        says.append(f"Its slots are set already ({sight.favoured[name]}): they come as other jobs end.")
        return Told(
            Step.CRITICAL, State.LOOK, "favoured", tuple(says), (case.look("slots", why="the shares"),)
        )
    says.append("Running jobs go on; the next free slots are its.")
    # Others may have reserved too much for it: then all reservations shrink alike, rather than none helping.
    reserved = ("--reserved", str(sight.least // 2), "--clamp") if sight.least > 1 else ()
    words = ("slots", name, *reserved, "--weight", str(FAVOURED), "--for", FOR)
    favour = case.change(*words, why=f"lane {name} is late and comes first")
    return Told(Step.CRITICAL, State.ACT, "late", tuple(says), (favour,))


def drain(case: Case) -> Told:
    """Step 5: the backlog comes in slowly, and slower while something is late."""
    found, says = case.sight.drain, list[str]()
    look = case.look("drain", why="what waits in the backlog, and how it is drained")
    now, declared = _per_second(found.rate), _per_second(found.declared)
    runs = found.on and not found.paused
    if not found.depth:
        said = f"Nothing is in the backlog; the drain is {'on' if runs else 'paused' if found.on else 'off'}."
        return Told(Step.DRAIN, State.OK, "empty", (said,), (look,))
    oldest = None if found.oldest_ms is None else found.oldest_ms / 1000
    says.append(
        f"{counted(found.depth, 'job')} in the backlog, the oldest for {span(oldest)}; "
        f"{pace(case.sight.deferred)} come in."
    )
    if not runs and case.pressed:
        says.append("It is not drained. That is right while something is late: what is there keeps.")
        return Told(Step.DRAIN, State.OK, "held_back", tuple(says), (look,))
    if not runs:
        says.append("It is not drained.")
        return Told(Step.DRAIN, State.ACT, "off", tuple(says), (look, _open(case)))
    if now is None or declared is None:
        says.append("No worker has declared a rate.")
        return Told(Step.DRAIN, State.LOOK, "no_rate", tuple(says), (look,))
    if not case.sight.workers:
        says.append("No worker is alive to drain it.")
        return Told(Step.DRAIN, State.LOOK, "no_worker", tuple(says), (look,))
    says.append(f"It is drained at {found.rate} at most{_left(found.depth, now, case.sight.deferred)}.")
    if case.pressed and now > declared / 2:
        words = ("drain", "--rate", rate(now / 2), "--for", FOR)
        slower = case.change(*words, why="something is late, so the backlog waits longer")
        return Told(Step.DRAIN, State.ACT, "too_fast", tuple(says), (look, slower))
    if case.pressed:
        return Told(Step.DRAIN, State.OK, "slowed", tuple(says), (look,))
    if now < declared:
        words = ("drain", "--rate", rate(min(declared, 2 * now)), "--for", FOR)
        faster = case.change(*words, why="nothing is late, so the backlog may come in faster")
        return Told(Step.DRAIN, State.LOOK, "may_be_faster", tuple(says), (look, faster))
    return Told(Step.DRAIN, State.OK, "draining", tuple(says), (look,))


def _open(case: Case) -> Command:
    """Let the backlog in again: at half of what is declared, unless somebody has set a rate."""
    found = case.sight.drain
    if found.on:
        return case.change("resume", f"lane:{BACKLOG}", why="nothing is late, so the backlog may come in")
    declared = _per_second(found.declared)
    slow = ("--rate", rate(declared / 2)) if declared is not None and found.rate == found.declared else ()
    return case.change("drain", "--on", *slow, why="nothing is late, so the backlog may come in slowly")


def _per_second(figures: Rate | None) -> float | None:
    return None if figures is None else figures.tokens * 1000 / figures.period_ms


def _left(depth: int, per_second: float, comes: float) -> str:
    """How long that takes, if all goes on so."""
    if per_second <= comes:
        return ", which is less than comes in"
    return f": empty in {span(depth / (per_second - comes))} or later"
