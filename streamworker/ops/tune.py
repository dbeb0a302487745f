"""What operators change at run time: pauses and limits. Each change is in the log, with who and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamworker.core import durations
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError, DurationError, InvalidArgument
from streamworker.core.gates import GateKind
from streamworker.core.limits import MAX_FIGURE, rate_figures
from streamworker.core.text import truncate_text
from streamworker.ops.history import iso
from streamworker.store import scripts
from streamworker.store.events import pairs
from streamworker.store.queue import Queue

#: What can be paused, as the first word of a scope.
SCOPES = ("lane", "tenant", "task", "dependency")
#: Seconds over which the waiters come in after a pause, so that nothing opens at once.
RAMP = 60.0
#: Longest reason that is kept, in characters.
MAX_REASON = 200
#: Timers that one `wake` serves, and how often it is called after a change.
_TIMERS, _WAKES = 100, 20


@dataclass(frozen=True, slots=True)
class Pause:
    """What is paused, or opens again. Times are ms since the epoch, by Redis's clock."""

    scope: str
    state: str  # paused, or ramp: its waiters come in
    until: int | None  # end of the pause or of the ramp; None: until somebody resumes
    by: str
    since: int
    reason: str

    def json(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "state": self.state,
            "until": iso(self.until),
            "by": self.by,
            "since": iso(self.since),
            "reason": None if self.reason in ("", "-") else self.reason,
        }


#: What may be resumed though nobody paused it: jobs that an outage left overdue.
OVERDUE = "overdue"


def check_scope(scope: str) -> str:
    """Return a scope such as `lane:normal` or `tenant:acme`. Raises InvalidArgument."""
    kind, colon, name = scope.partition(":")
    if kind not in SCOPES or not colon or not name or name != "".join(name.split()):
        raise InvalidArgument("scope", scope, f"is none of {', '.join(f'{each}:NAME' for each in SCOPES)}")
    return scope


def figures_of(name: str, value: str, burst: int | None = None) -> str:
    """The figures of a limit from what people write: `200/s` for a rate, a number for a concurrency.

    Raises InvalidArgument.
    """
    kind, colon, rest = name.partition(":")
    if not colon or not rest or kind not in (GateKind.RATE, GateKind.CONCURRENCY):
        raise InvalidArgument("limit", name, "begins with neither rate: nor concurrency:")
    if name != "".join(name.split()):
        raise InvalidArgument("limit", name, "has white space, which no gate has")
    if kind == GateKind.RATE:
        try:
            return rate_figures(value, burst, what=name)
        except ConfigurationError as error:
            raise InvalidArgument("limit", value, str(error)) from None
    if burst is not None:
        raise InvalidArgument("burst", burst, f"belongs to a rate, and {name} is none")
    if not value.isdecimal() or not 1 <= int(value) <= MAX_FIGURE:
        raise InvalidArgument("limit", value, f"is no whole number from 1 to {MAX_FIGURE}")
    return str(int(value))


def spoken(kind: str, figures: str | None) -> str | None:
    """Figures as people read them."""
    if not figures or kind != GateKind.RATE:
        return figures or None
    tokens, period_ms, burst = figures.split(",")
    return f"{tokens} per {durations.format_ms(int(period_ms))}, burst {burst}"


def plain(kind: str, figures: str | None) -> int | dict[str, int] | None:
    """Figures as programs read them: the holders of a concurrency, or what a rate is made of."""
    if not figures:
        return None
    if kind != GateKind.RATE:
        return int(figures)
    return dict(zip(("tokens", "period_ms", "burst"), map(int, figures.split(",")), strict=True))


async def pause(
    queue: Queue, scope: str, *, actor: str, reason: str = "", duration: Duration | None = None
) -> None:
    """Hold back the jobs of a scope, for a time or until `resume`. Nothing that runs is stopped."""
    value = ""
    if duration is not None:
        for_ms = durations.to_ms(durations.parse(duration, what="pause"), what="pause")
        if for_ms < 1000:
            raise DurationError("pause", duration, "is shorter than a second")
        value = str(for_ms)
    await change(queue, actor, "pause", check_scope(scope), value, reason)


async def resume(queue: Queue, scope: str, *, actor: str, reason: str = "", over: Duration = RAMP) -> bool:
    """Let the jobs of a scope run again, those that waited evenly over a time. False: it was not paused.

    The scope `overdue` is the jobs that come back after an outage, by a ramp of their own.
    """
    ramp_ms = round(durations.parse(over, what="over") * 1000)
    scope = scope if scope == OVERDUE else check_scope(scope)
    return await change(queue, actor, "resume", scope, str(ramp_ms), reason)


async def set_limit(
    queue: Queue,
    name: str,
    figures: str,
    *,
    actor: str,
    reason: str = "",
    duration: Duration | None = None,
) -> None:
    """Let other figures hold for a gate, or for all gates of a declared limit; see `figures_of`.

    For a time, or until `reset_limit`.
    """
    await change(queue, actor, "limit", name, timed(figures, duration), reason)


async def reset_limit(queue: Queue, name: str, *, actor: str, reason: str = "") -> bool:
    """Let what the tasks declare hold again. False: nothing else was set."""
    return await change(queue, actor, "reset", name, "", reason)


def timed(value: str, duration: Duration | None) -> str:
    """A value as `tune` takes it, that holds for a time; None: for good. Raises DurationError."""
    if duration is None:
        return value
    for_ms = durations.to_ms(durations.parse(duration, what="--for"), what="--for")
    if for_ms < 1000:
        raise DurationError("--for", duration, "is shorter than a second")
    return f"{value};for={for_ms}"


async def change(queue: Queue, actor: str, verb: str, name: str, value: str, reason: str) -> bool:
    """Send one row of `tune`, and let who may move by now move. False: there was nothing to change."""
    (reply,) = await send(queue, actor, [(verb, name, value, reason)])
    return reply != "NOTHING"


async def send(queue: Queue, actor: str, rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """Send rows of `tune`, verb, name, value and reason, and let who may move by now move."""
    replies = await _send(queue, actor, rows)
    for _ in range(_WAKES):  # who may move by now moves now; the rest is the keeper's
        served, _ = await queue.run(
            scripts.wake(clock="", worker=actor, retention_ms=scripts.RETENTION_MS, limit=_TIMERS)
        )
        if not served:
            break
    return replies


async def note(queue: Queue, actor: str, name: str, value: str, reason: str) -> None:
    """Say in the log what other calls are about to do; `name` and `value` have no white space."""
    await _send(queue, actor, [("note", name, value, reason)])


async def _send(queue: Queue, actor: str, rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    actor = "".join(actor.split()) or "unknown"  # one word, or nobody could read it again
    words: list[str] = []
    for verb, name, value, reason in rows:
        words += (verb, name, value, truncate_text(" ".join(reason.split()), MAX_REASON) or "-")
    call = scripts.tune(clock="", actor=actor, retention_ms=scripts.RETENTION_MS, rows=words)
    return [reply.decode() for reply in await queue.run(call)]


async def pauses(queue: Queue) -> list[Pause]:
    """What is paused or opens again, by scope."""
    text = await queue.caller.command("GET", queue.keys.pauses)
    return read_pauses((text or b"").decode())


def read_pauses(text: str) -> list[Pause]:
    """From the key `pauses`."""
    found = []
    for line in text.splitlines():
        scope, state, until, by, since, *reason = line.split(" ", 5)
        word = state.partition(",")[0]  # a ramp says as well how many waited, and how long it takes
        found.append(Pause(scope, word, int(until) or None, by, int(since), reason[0] if reason else ""))
    return sorted(found, key=lambda one: one.scope)


async def limits(queue: Queue) -> list[dict[str, Any]]:
    """`limits --json`: what the tasks declare and what operators have set, by name.

    A name is a gate, or a declared limit over many gates, such as `rate:tenant@send`.
    """
    known = pairs(await queue.caller.command("HGETALL", queue.keys.policies))
    declared, given = {}, {}
    for field, value in known.items():
        kind, _, name = field.decode().partition(":")
        if name.startswith((f"{GateKind.BREAKER}:", "slots:")):  # no limits: see ops/breakers.py, slots.py
            continue
        if kind == "declared" and ":" in name:
            declared[name] = value.decode()
        elif kind == "limit":
            given[name] = value.decode()
    return [
        {
            "name": name,
            "kind": name.partition(":")[0],
            "declared": declared.get(name),
            "set": given.get(name),
            "in_force": given.get(name) or declared.get(name),
        }
        for name in sorted(declared | given)
    ]
