"""The backlog and its drain, and the throttles at the door: what they are, and what operators set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamworker.core import durations
from streamworker.core.admission import DEFAULT_DRAIN
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError, InvalidArgument
from streamworker.core.lane import BACKLOG, OVERFLOWS
from streamworker.core.limits import rate_figures
from streamworker.ops import settings, tune
from streamworker.ops.history import iso
from streamworker.store.caller import Caller
from streamworker.store.depths import now_ms, oldest_deferred_ms
from streamworker.store.events import pairs
from streamworker.store.keys import Keys
from streamworker.store.queue import Queue

#: Counters of `stats` that begin so count the jobs of the backlog, by the lane that they are meant for.
_DEPTH = "backlog:"


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket as people read and write it."""

    tokens: int
    period_ms: int
    burst: int

    @classmethod
    def of(cls, figures: str) -> Rate:
        """From `tokens,period_ms,burst`."""
        return cls(*(int(word) for word in figures.split(",")))

    def __str__(self) -> str:
        period = durations.format_ms(self.period_ms)
        return f"{self.tokens}/{period.removeprefix('1') if period in ('1s', '1h') else period}"


@dataclass(frozen=True, slots=True)
class Setting:
    """What an operator set: by whom, since when and until when (ms; None: until it is taken back), why."""

    by: str
    since: int
    reason: str
    until: int | None = None

    def json(self) -> dict[str, Any]:
        return {
            "by": self.by,
            "since": iso(self.since),
            "until": iso(self.until),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Drain:
    """How the backlog is drained. `declared` is what the workers declare, None before the first of them."""

    on: bool
    rate: Rate | None
    declared: Rate | None
    set: Setting | None
    paused: bool
    #: Jobs in the backlog and the age of the oldest in ms, by the lane that they are meant for.
    lanes: dict[str, tuple[int, int | None]]

    @property
    def depth(self) -> int:
        return sum(depth for depth, _ in self.lanes.values())

    @property
    def oldest_ms(self) -> int | None:
        return max((age for _, age in self.lanes.values() if age is not None), default=None)

    def json(self) -> dict[str, Any]:
        """The stable shape of `drain --json`."""
        return {
            "on": self.on,
            "paused": self.paused,
            "rate": None if self.rate is None else str(self.rate),
            "burst": None if self.rate is None else self.rate.burst,
            "declared": None if self.declared is None else str(self.declared),
            "set": None if self.set is None else self.set.json(),
            "depth": self.depth,
            "lanes": [
                {"lane": lane, "depth": depth, "oldest_age_seconds": None if age is None else age / 1000}
                for lane, (depth, age) in sorted(self.lanes.items())
            ],
        }


async def drain(queue: Queue) -> Drain:
    """The backlog and its drain as they are now."""
    command = queue.caller.command
    declared, given = await command("HMGET", queue.keys.policies, "declared:drain", "drain")
    state, figures, setting = "on", "-", None
    if given is not None:
        state, figures, *by = given.decode().split(" ", 4)
        setting = _setting(by, await _until(queue, "drain", BACKLOG))
    of_workers = Rate.of(declared.decode()) if declared else None
    return Drain(
        state == "on",
        of_workers if figures == "-" else Rate.of(figures),
        of_workers,
        setting,
        any(one.scope == f"lane:{BACKLOG}" and one.state == "paused" for one in await tune.pauses(queue)),
        await backlog(queue.caller, queue.keys),
    )


async def backlog(caller: Caller, keys: Keys) -> dict[str, tuple[int, int | None]]:
    """Jobs in the backlog and the age of the oldest in ms, by the lane that they are meant for."""
    command = caller.command
    counters = pairs(await command("HGETALL", keys.stats))
    lanes = {name.decode().removeprefix(_DEPTH) for name in counters if name.startswith(_DEPTH.encode())}
    now = await now_ms(command)
    return {
        lane: (
            max(0, int(counters[f"{_DEPTH}{lane}".encode()])),
            await oldest_deferred_ms(command, keys, lane, now),
        )
        for lane in sorted(lanes)
    }


async def set_drain(
    queue: Queue,
    *,
    actor: str,
    on: bool | None = None,
    rate: str | None = None,
    burst: int | None = None,
    reason: str = "",
    duration: Duration | None = None,
) -> None:
    """Turn the drain on or off, or set its rate, for a time or for good; what is not said stays.

    Raises InvalidArgument.
    """
    declared = (await drain(queue)).declared

    def over(value: str | None) -> str:
        state, figures = (value or "on -").split(" ")
        if rate is not None:
            figures = _figures(rate, burst)
        elif burst is not None:
            held = declared if figures == "-" else Rate.of(figures)
            figures = _figures(str(held or DEFAULT_DRAIN), burst)
        if on is not None:
            state = "on" if on else "off"
        return f"{state} {figures}"

    await settings.adjust(queue, "drain", BACKLOG, over, actor=actor, reason=reason, duration=duration)


async def reset_drain(queue: Queue, *, actor: str, reason: str = "") -> bool:
    """Let what the workers declare hold again. False: nothing else was set."""
    return await tune.change(queue, actor, "drain", BACKLOG, "", reason)


# --- throttles -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Throttle:
    """How many jobs a second a lane or a tenant may enqueue, and what becomes of the others."""

    scope: str
    rate: Rate
    overflow: str
    set: Setting

    def json(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "rate": str(self.rate),
            "burst": self.rate.burst,
            "overflow": self.overflow,
            **self.set.json(),
        }


def throttle_scope(scope: str) -> str:
    """Return `lane:NAME` or `tenant:NAME`, the latter with `*` for each tenant. Raises InvalidArgument."""
    kind, colon, name = scope.partition(":")
    if kind not in ("lane", "tenant") or not colon or not name or name != "".join(name.split()):
        raise InvalidArgument("scope", scope, "is neither lane:NAME nor tenant:NAME nor tenant:*")
    if (kind, name) == ("lane", BACKLOG):
        raise InvalidArgument("scope", scope, "is what a throttle leads to; throttle the lane that is meant")
    return scope


async def throttles(queue: Queue) -> list[Throttle]:
    """What is throttled, by scope."""
    text = await queue.caller.command("HGET", queue.keys.policies, "throttles")
    found = []
    for line in (text or b"").decode().splitlines():
        _, scope, figures, overflow, *by = line.split(" ", 6)
        until = await _until(queue, "throttle", scope)
        found.append(Throttle(scope, Rate.of(figures), overflow, _setting(by, until)))
    return sorted(found, key=lambda one: one.scope)


async def set_throttle(
    queue: Queue,
    scope: str,
    rate: str,
    *,
    actor: str,
    burst: int | None = None,
    overflow: str = BACKLOG,
    reason: str = "",
    duration: Duration | None = None,
) -> None:
    """Let only so many jobs of a lane or tenant in; the others wait in the backlog, or are refused.

    For a time, or until `lift_throttle`.

    Raises InvalidArgument.
    """
    if overflow not in OVERFLOWS:
        raise InvalidArgument("overflow", overflow, f"is none of {', '.join(OVERFLOWS)}")
    value = tune.timed(f"{_figures(rate, burst)} {overflow}", duration)
    await tune.change(queue, actor, "throttle", throttle_scope(scope), value, reason)


async def lift_throttle(queue: Queue, scope: str, *, actor: str, reason: str = "") -> bool:
    """Let all jobs of a scope in again. False: it was not throttled."""
    return await tune.change(queue, actor, "throttle", throttle_scope(scope), "", reason)


def _figures(rate: str, burst: int | None) -> str:
    try:
        return rate_figures(rate, burst, what="rate")
    except ConfigurationError as error:
        raise InvalidArgument("rate", rate, str(error)) from None


def _setting(words: list[str], until: int | None) -> Setting:
    by, since, *reason = words
    return Setting(by, int(since), reason[0] if reason else "", until)


async def _until(queue: Queue, topic: str, name: str) -> int | None:
    text = await queue.caller.command("HGET", queue.keys.settings, f"{topic} {name}")
    return int((text or b"0").split(b" ", 1)[0]) or None
