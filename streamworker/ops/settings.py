"""What operators have set, in one list, with who, when, why and until when; and their last changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamworker.core import durations
from streamworker.core.durations import Duration
from streamworker.core.errors import StreamworkerError
from streamworker.core.gates import breaker_of
from streamworker.core.overrides import RetryOverride
from streamworker.core.slots import SlotsOverride
from streamworker.ops import breakers, tune
from streamworker.ops.history import iso
from streamworker.store.depths import now_ms
from streamworker.store.events import pairs
from streamworker.store.queue import Queue

#: How often a change is tried over what others change at the same time.
TRIES = 10


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that an operator set. Times are ms since the epoch, by Redis's clock."""

    topic: str  # pause, limit, throttle, drain, slots, retries, breaker
    name: str
    value: str  # as the scripts have it
    by: str
    since: int
    reason: str
    until: int | None = None  # None: until somebody changes it
    #: What holds again after `until`; None: what is declared.
    below: Setting | None = None

    def spoken(self) -> str:
        """Its value as people read it."""
        return spoken(self.topic, self.name, self.value)

    def json(self) -> dict[str, Any]:
        """The stable shape of a row of `settings --json`."""
        return {
            "what": self.topic,
            "name": self.name,
            "value": self.spoken(),
            "by": self.by,
            "since": iso(self.since),
            "until": iso(self.until),
            "reason": None if self.reason in ("", "-") else self.reason,
            "then": None if self.below is None else self.below.spoken(),
        }


def spoken(topic: str, name: str, value: str) -> str:
    """A value of `settings` as people read it; one that cannot be read as it is."""
    try:
        match topic:
            case "limit":
                return tune.spoken(name.partition(":")[0], value) or "-"
            case "throttle":
                figures, overflow = value.split(" ")
                return f"{tune.spoken('rate', figures)}; others to {overflow}"
            case "drain":
                state, figures = value.split(" ")
                return state if figures == "-" else f"{state}, {tune.spoken('rate', figures)}"
            case "slots":
                return SlotsOverride.parse(value).spoken()
            case "retries":
                return RetryOverride.parse(value).spoken()
    except ValueError:
        pass
    return value


def read(topic: str, name: str, text: str) -> Setting | None:
    """From a field of the key `settings`; None for ''. Raises ValueError for what is none."""
    if not text:
        return None
    line, _, rest = text.partition("\n")
    head, value, reason = line.split("\t", 2)
    till, by, since = head.split(" ")
    return Setting(topic, name, value, by, int(since), reason, int(till) or None, read(topic, name, rest))


async def by_name(queue: Queue, *topics: str) -> dict[tuple[str, str], Setting]:
    """What is set of limits, throttles, drain, slots and retries, or of some of these topics."""
    found = {}
    for raw, text in pairs(await queue.caller.command("HGETALL", queue.keys.settings)).items():
        topic, _, name = raw.decode("utf-8", "replace").partition(" ")
        if topics and topic not in topics:
            continue
        try:
            setting = read(topic, name, text.decode("utf-8", "replace"))
        except ValueError:  # of a newer version
            continue
        if setting is not None:
            found[topic, name] = setting
    return found


async def adjust(
    queue: Queue,
    topic: str,
    name: str,
    value_over: Callable[[str | None], str],
    *,
    actor: str,
    reason: str,
    duration: Duration | None,
) -> None:
    """Change a part of what is set. `value_over` makes the value from the one that stands, None for none.

    What stands for a time stays no longer for it: without `duration` what holds for good is changed, and what
    lies over it too, for the rest of its time. In one step, and not over what somebody else changed
    meanwhile: then it is done again by what stands now. Raises StreamworkerError when that never ends.
    """
    for _ in range(TRIES):
        latest = next((one.id for one in await changes(queue) if (one.topic, one.name) == (topic, name)), 0)
        values = await _adjusted(queue, topic, name, value_over, duration)
        expected = ("expect", f"{topic} {name}", str(latest), "0")
        rows = [(topic, name, value, reason) for value in values]
        if await tune.send(queue, actor, [expected, *rows]) != ["CHANGED"]:
            return
    raise StreamworkerError(f"{topic} {name} is changed all the time; see: streamworker settings --changes")


async def _adjusted(
    queue: Queue,
    topic: str,
    name: str,
    value_over: Callable[[str | None], str],
    duration: Duration | None,
) -> list[str]:
    """What to set, one after the other."""
    top = (await by_name(queue, topic)).get((topic, name))
    if duration is not None:
        return [tune.timed(value_over(None if top is None else top.value), duration)]
    over = top if top is not None and top.until is not None else None
    below = top if over is None else over.below
    values = [value_over(None if below is None else below.value)]
    left = 0 if over is None else (over.until or 0) - await now_ms(queue.caller.command)
    if over is not None and left > 0:
        values.append(f"{value_over(over.value)};for={left}")
    return values


async def settings(queue: Queue) -> list[Setting]:
    """All that operators have set and that still holds, by topic and name."""
    found = list((await by_name(queue)).values())
    found += [
        Setting("pause", one.scope, one.state, one.by, one.since, one.reason, one.until)
        for one in await tune.pauses(queue)
        if one.state == "paused"
    ]
    found += [
        Setting("breaker", one.dependency, str(one.state), one.by, one.since, one.reason, one.until)
        for one in (await breakers.standings(queue)).values()
        if one.by is not None
    ]
    return sorted(found, key=lambda one: (one.topic, one.name))


# --- changes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an operator. `before` is what stood there, as `tune` wrote it down."""

    id: int
    at: int
    by: str
    topic: str
    name: str
    verb: str
    value: str  # '-': none
    reason: str
    undoes: int  # the change that it took back; 0: none
    before: str

    @property
    def ends_at(self) -> int | None:
        """When its own time is over; None: it has none."""
        for_ms = self.value.rpartition(";for=")[2] if ";for=" in self.value else "0"
        if self.verb in ("pause", "open", "close"):
            for_ms = self.value.split(" ")[0]
        return self.at + int(for_ms) if for_ms.isdecimal() and int(for_ms) else None

    def spoken(self) -> str:
        """What was done, as people read it."""
        value, timed, for_ms = self.value.partition(";for=")
        if self.topic in ("pause", "breaker"):
            end = self.ends_at
            return self.verb if end is None else f"{self.verb} for {durations.format_ms(end - self.at)}"
        if value == "-":
            return "reset"
        said = spoken(self.topic, self.name, value)
        return f"{said} for {durations.format_ms(int(for_ms))}" if timed else said

    def json(self) -> dict[str, Any]:
        """The stable shape of a row of `settings --changes --json`."""
        return {
            "id": self.id,
            "at": iso(self.at),
            "by": self.by,
            "what": self.topic,
            "name": shown_name(self.topic, self.name),
            "change": self.spoken(),
            "reason": None if self.reason in ("", "-") else self.reason,
            "undoes": self.undoes or None,
        }


def shown_name(topic: str, name: str) -> str:
    """The name as commands take it: of a breaker the dependency, not the gate."""
    return name.removeprefix(breaker_of("")) if topic == "breaker" else name


async def changes(queue: Queue) -> list[Change]:
    """The last changes that are kept, the newest first."""
    found = []
    for raw in await queue.caller.command("LRANGE", queue.keys.changes, 0, -1):
        line, _, before = raw.decode("utf-8", "replace").partition("\n")
        head, what, said, reason = line.split("\t", 3)
        number, at, by, undoes = head.split(" ")
        topic, _, name = what.partition(" ")
        verb, _, value = said.partition(" ")
        found.append(Change(int(number), int(at), by, topic, name, verb, value, reason, int(undoes), before))
    return found
