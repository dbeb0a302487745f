"""Steps about what fails: dependencies, retries, dead letters and their replay. Pure."""

from __future__ import annotations

from streamworker.core.text import counted
from streamworker.ops.dlq.causes import Cause
from streamworker.ops.runbook.answer import Command, Kind, State, Told, listed, nameable
from streamworker.ops.runbook.case import ACUTE, FOR, SURGE, SURGE_RATE, Case, Illness
from streamworker.ops.runbook.sight import Service
from streamworker.ops.runbook.whys import Step
from streamworker.ops.runbook.words import pace

#: How long a dependency that fails is left alone.
REST = "10m"
#: Part of all slots that a dependency which hangs may hold.
PART = 0.25
#: Part of the calls that must fail for a dependency to be left alone rather than called less.
MOST_FAIL = 0.5
#: Causes that are looked at, and letters of each that are replayed first.
CAUSES, FEW = 3, 20
#: Which letters a replay is about: those of this incident.
NEWER = "1h"


def dependency(case: Case) -> Told:
    """Step 2: is something that jobs call ill? Then it is called less, and no worker is added."""
    commands = [case.look("breakers", why="what each dependency is like")]
    if not case.sight.services:
        said = "No task declares a dependency (uses=), so none can be watched, paused or limited."
        return Told(Step.DEPENDENCY, State.OK, "none_declared", (said,))
    ill = [(each, case.ill[each.name]) for each in case.sight.services if each.name in case.ill]
    if not ill:
        calls = ", ".join(map(_calls, case.sight.services))
        return Told(Step.DEPENDENCY, State.OK, "well", (f"No dependency is ill: {calls}.",), tuple(commands))
    says = tuple(_says(case, service, illness) for service, illness in ill)
    acute = [(service, illness) for service, illness in ill if illness in ACUTE]
    remedies = [_remedy(case, *each) for each in acute if nameable(each[0].name)]
    commands += [each for each in remedies if each is not None]
    _, worst = (acute or ill)[0]
    state = State.ACT if any(each.kind is Kind.CHANGE for each in commands) else State.LOOK
    return Told(Step.DEPENDENCY, state, str(worst), says, tuple(commands))


def _calls(service: Service) -> str:
    """What its breaker counts; without one, nobody does."""
    if not service.ok + service.failed:
        return f"{service.name} no calls counted"
    return f"{service.name} {service.ok} ok, {service.failed} failed"


def _says(case: Case, service: Service, illness: Illness) -> str:
    calls = f"{service.failed} of {counted(service.ok + service.failed, 'call')} failed"
    waits = f"{counted(service.waiting, 'job')} {'waits' if service.waiting == 1 else 'wait'}, uncharged"
    match illness:
        case Illness.PAUSED:
            pause = case.sight.paused(f"dependency:{service.name}")
            return f"{service.name} is paused by {pause.by if pause else 'an operator'}; {waits}."
        case Illness.OPEN:
            state = service.state.replace("_", " ")
            if service.by:
                return (
                    f"The breaker of {service.name} is {state} by {service.by}; {waits}. Its calls do not "
                    f"change that: see step {Step.NOTE.number} for what takes it back."
                )
            by = f" since {calls}" if service.failed else ""
            return f"The breaker of {service.name} is {state}{by}; {waits}. There is nothing to do."
        case Illness.FAILING:
            return f"{service.name} fails: {calls}."
        case Illness.SLOW:
            limited = "" if service.limit is None else f" ({service.limit} may run at once)"
            slots, waiting = counted(case.sight.slots, "slot"), counted(case.sight.ready, "job")
            return (
                f"{service.name} hangs: jobs that use it hold {service.running} of {slots}{limited}, "
                f"while {waiting} wait for one."
            )


def _remedy(case: Case, service: Service, illness: Illness) -> Command | None:
    """Call it less where it has a limit and answers at all; else leave it alone for a while.

    None: it is called less already, and what is under way has to end.
    """
    fewer = max(1, int(PART * case.sight.slots))
    if service.limit is not None and service.limit <= fewer and illness is Illness.SLOW:
        return None
    if service.limit is not None and fewer < service.limit and service.failed_share < MOST_FAIL:
        words = ("limits", "set", f"concurrency:dependency:{service.name}", str(fewer), "--for", FOR)
        return case.change(*words, why=f"{service.name} {_is(illness)}, so fewer call it at once")
    leave = ("pause", f"dependency:{service.name}", "--for", REST)
    return case.change(*leave, why=f"{service.name} {_is(illness)}, so it is left alone")


def _is(illness: Illness) -> str:
    return "hangs" if illness is Illness.SLOW else "fails"


def retries(case: Case) -> Told:
    """Step 6: what is tried again and again is tried later, and not all at once."""
    seen = case.sight.retries
    look = case.look("jobs", "list", "--status", "retry_scheduled", "-n", "20", why="who waits for a retry")
    if not case.storms:
        said = f"{counted(seen.scheduled, 'job')} in the schedule; no task and code stands out."
        return Told(Step.RETRIES, State.OK, "calm", (said,), (look,))
    says, commands = list[str](), dict[str, Command]()
    for task, code, count in case.storms:
        says.append(f"About {counted(count, 'job')} of {task} wait for a retry, of {code}.")
        ill = sorted(each.name for each in case.services_of(task) if each.name in case.ill)
        if ill:
            says.append(f"{task} uses {listed(ill)}: see step {Step.DEPENDENCY.number}.")
        if not nameable(task):
            says.append("Its name cannot be typed: pause its lane.")
        elif task in case.sight.calmed:
            says.append(f"Its retries are set already ({case.sight.calmed[task]}), for what is decided anew.")
        elif task not in commands:
            words = ("retries", task, "--multiply", "3", "--jitter", "0.3", "--for", FOR)
            commands[task] = case.change(*words, why=f"a storm of retries of {task} with {code}")
    if all(task in case.sight.calmed for task, _, _ in case.storms):
        return Told(Step.RETRIES, State.LOOK, "calmed", tuple(says), (look,))
    return Told(Step.RETRIES, State.ACT, "storm", tuple(says), (look, *commands.values()))


def letters(case: Case) -> Told:
    """Step 7: what died, and of what. Read one before anything else."""
    found = case.sight.letters
    if not found.total:
        return Told(Step.LETTERS, State.OK, "none", ("There is no dead letter.",))
    some = "at least " if found.more else ""
    recent = sum(cause.count for cause in found.causes)
    total, come = counted(found.total, "dead letter"), pace(found.a_second)
    says = [f"{total}, {some}{recent} of the last hour; {come} come."]
    commands = [case.look("dlq", "causes", "--newer", NEWER, why="what they died of")]
    for cause in found.causes[:CAUSES]:
        says.append(f"{cause.count} of {cause.task} with {cause.error_code}: {_first_line(cause.error)}")
        if cause.samples:
            commands.append(case.look("dlq", "show", cause.samples[0], why=f"one of {cause.task}"))
    surge = found.a_second >= SURGE_RATE or any(cause.count >= SURGE for cause in found.causes)
    if surge:
        says.append(
            "Read one, and mend what it died of. Letters stay meanwhile, as long and as many as "
            "STREAMWORKER_DLQ_MAX_AGE and STREAMWORKER_DLQ_MAX_COUNT say."
        )
    return Told(Step.LETTERS, State.LOOK, "surge" if surge else "some", tuple(says), tuple(commands))


def _first_line(error: str) -> str:
    return error.strip().partition("\n")[0][:120] or "no error text"


def replay(case: Case) -> Told:
    """Step 8: only what may run twice, only once its cause is gone, and a few first."""
    causes = case.sight.letters.causes[:CAUSES]
    if not causes:
        return Told(Step.REPLAY, State.OK, "nothing", ("Nothing died in the last hour.",))
    says, commands, ready = list[str](), list[Command](), False
    for cause in causes:
        if not nameable(cause.task, cause.error_code):
            named = cause.task or "A task that cannot be read"
            says.append(f"{named}: its name cannot be typed; replay its letters by id.")
            continue
        which = ("--task", cause.task, "--code", cause.error_code, "--newer", NEWER)
        commands.append(case.look("dlq", "replay", *which, "--dry-run", why="who could run again"))
        if cause.task not in case.sight.keyed:
            says.append(
                f"{cause.task} declares no key=: only its job id tells a second run from the first. "
                "Does all that it calls know ctx.key?"
            )
        hold = _hold(case, cause)
        if hold:
            says.append(f"{cause.task}: not yet, {hold}.")
            continue
        ready = True
        few = ("--limit", str(FEW), "--yes")
        commands.append(case.change("dlq", "replay", *which, *few, why=f"the first {FEW} of {cause.task}"))
    says.append("A dry run says who is skipped, and why. Replay a few, look, then the rest.")
    said = tuple(dict.fromkeys(says))  # a task may have died of several causes
    return Told(Step.REPLAY, State.LOOK, "may_be_tried" if ready else "not_yet", said, tuple(commands))


def _hold(case: Case, cause: Cause) -> str:
    """Why its cause may still be there; '' if nothing says so."""
    ill = sorted(each.name for each in case.services_of(cause.task) if each.name in case.ill)
    if ill:
        return f"{listed(ill)} is ill"
    if any(task == cause.task for task, _, _ in case.storms):
        return "its retries still storm"
    if case.sight.letters.a_second >= SURGE_RATE:
        return "letters still come"
    return ""
