"""Typed wrappers of the Lua scripts. Each is checked against the script's binding lines at import."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from streamworker.core.lanes import Plan
from streamworker.store import lua
from streamworker.store.connection import Argument
from streamworker.store.traces import Sending

#: ms that an open key, once its job succeeded, stays by default.
KEY_WINDOW_MS = 24 * 3600 * 1000
#: ms that a finished record stays.
RETENTION_MS = 15 * 60 * 1000
#: Rows of one call at most: a script must not hold up the server (R32, R33).
BATCH = 500
#: Claims of one job until it ends `too_many_starts`; the same number stands in claim_step.lua.
MAX_STARTS = 20


@dataclass(frozen=True, slots=True)
class Call:
    """A script with its arguments, ready to be sent, and safe to be sent twice."""

    script: lua.Script
    argv: tuple[Argument, ...]


F = TypeVar("F", bound=Callable[..., Call])


#: Folders of `lua/` with scripts of their own.
_FOLDERS = ("cache", "dlq", "lock")


def script_name(wrapper: str) -> str:
    """The script of a wrapper: `lock_acquire` is lua/lock/acquire.lua."""
    folder, _, name = wrapper.partition("_")
    return f"{folder}/{name}" if folder in _FOLDERS else wrapper


def bound(wrapper: F) -> F:
    """Check a wrapper's parameters against the bindings of the script of the same name."""
    name = script_name(wrapper.__name__)
    terms = lua.contract(name)
    parameters = tuple(inspect.signature(wrapper).parameters)
    expected = (*terms.bindings, *(("rows",) if terms.rows else ()))
    if parameters != expected:
        raise TypeError(f"scripts.{name} takes {list(parameters)}, but lua/{name}.lua binds {list(expected)}")
    return wrapper


@bound
def enqueue(*, clock: str, marker: str = "", rows: Iterable[Argument]) -> Call:
    return Call(lua.load("enqueue"), (clock, marker, *rows))


@bound
def coalesce(*, clock: str, marker: str = "", rows: Iterable[Argument]) -> Call:
    return Call(lua.load("coalesce"), (clock, marker, *rows))


@bound
def claim(
    *,
    clock: str,
    worker: str,
    session: int,
    lease_ms: int,
    retention_ms: int,
    limit: int,
    shared: int,
    offers: str,
    plan: str,
) -> Call:
    return Call(
        lua.load("claim"),
        (clock, worker, session, lease_ms, retention_ms, limit, shared, offers, plan),
    )


@bound
def exchange(
    *,
    clock: str,
    worker: str,
    session: int,
    lease_ms: int,
    retention_ms: int,
    limit: int,
    shared: int,
    offers: str,
    plan: str,
    calls: str = "",
    rows: Iterable[Argument],
) -> Call:
    return Call(
        lua.load("exchange"),
        (clock, worker, session, lease_ms, retention_ms, limit, shared, offers, plan, calls, *rows),
    )


@bound
def settle(*, clock: str, actor: str, lease_ms: int, retention_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("settle"), (clock, actor, lease_ms, retention_ms, *rows))


@bound
def heartbeat(*, clock: str, worker: str, lease_ms: int, liveness_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("heartbeat"), (clock, worker, lease_ms, liveness_ms, *rows))


@bound
def recover(
    *,
    clock: str,
    worker: str,
    lease_ms: int,
    retention_ms: int,
    lane: str,
    kind: str,
    count: int,
) -> Call:
    return Call(lua.load("recover"), (clock, worker, lease_ms, retention_ms, lane, kind, count))


@bound
def repair(*, clock: str, worker: str, retention_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("repair"), (clock, worker, retention_ms, *rows))


@bound
def promote(*, clock: str, worker: str, retention_ms: int, limit: int) -> Call:
    return Call(lua.load("promote"), (clock, worker, retention_ms, limit))


@bound
def wake(*, clock: str, worker: str, retention_ms: int, limit: int) -> Call:
    return Call(lua.load("wake"), (clock, worker, retention_ms, limit))


@bound
def drain(*, clock: str, worker: str, retention_ms: int, limit: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("drain"), (clock, worker, retention_ms, limit, *rows))


@bound
def tune(*, clock: str, actor: str, retention_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("tune"), (clock, actor, retention_ms, *rows))


@bound
def declare(*, clock: str, lanes: str, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("declare"), (clock, lanes, *rows))


@bound
def lock_acquire(*, clock: str, name: str, holder: str, ttl_ms: int, floor: int) -> Call:
    return Call(lua.load("lock/acquire"), (clock, name, holder, ttl_ms, floor))


@bound
def lock_extend(*, name: str, holder: str, ttl_ms: int) -> Call:
    return Call(lua.load("lock/extend"), (name, holder, ttl_ms))


@bound
def lock_release(*, name: str, holder: str) -> Call:
    return Call(lua.load("lock/release"), (name, holder))


@bound
def cache_ask(*, name: str, version: int | str, token: str, hold_ms: int) -> Call:
    return Call(lua.load("cache/ask"), (name, version, token, hold_ms))


@bound
def cache_keep(*, name: str, version: int, token: str, ttl_ms: int, entry: bytes) -> Call:
    return Call(lua.load("cache/keep"), (name, version, token, ttl_ms, entry))


@bound
def cancel(*, clock: str, actor: str, retention_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("cancel"), (clock, actor, retention_ms, *rows))


@bound
def hasten(*, clock: str, actor: str, retention_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("hasten"), (clock, actor, retention_ms, *rows))


@bound
def replay(*, clock: str, actor: str, retention_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("replay"), (clock, actor, retention_ms, *rows))


@bound
def purge(
    *, clock: str, actor: str, retention_ms: int, lane: str, places: str, why: str, rows: Iterable[Argument]
) -> Call:
    return Call(lua.load("purge"), (clock, actor, retention_ms, lane, places, why, *rows))


@bound
def discard(*, clock: str, actor: str, retention_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("discard"), (clock, actor, retention_ms, *rows))


@bound
def dlq_edit(*, clock: str, actor: str, retention_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("dlq/edit"), (clock, actor, retention_ms, *rows))


@bound
def dlq_import(*, clock: str, actor: str, retention_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("dlq/import"), (clock, actor, retention_ms, *rows))


@bound
def dlq_trim(
    *, clock: str, worker: str, retention_ms: int, max_age_ms: int, max_count: int, limit: int
) -> Call:
    return Call(lua.load("dlq/trim"), (clock, worker, retention_ms, max_age_ms, max_count, limit))


@bound
def mirrored(*, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("mirrored"), tuple(rows))


@bound
def restore(*, clock: str, actor: str, retention_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("restore"), (clock, actor, retention_ms, *rows))


@bound
def hold(*, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("hold"), tuple(rows))


@bound
def recall(*, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("recall"), tuple(rows))


@bound
def session(*, worker: str, own: int, liveness_ms: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("session"), (worker, own, liveness_ms, *rows))


@bound
def watch(*, clock: str, job_id: str, wait: int) -> Call:
    return Call(lua.load("watch"), (clock, job_id, wait))


@bound
def forget(*, worker: str, leave: int, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("forget"), (worker, leave, *rows))


@bound
def elect(*, role: str, worker: str, ttl_ms: int) -> Call:
    return Call(lua.load("elect"), (role, worker, ttl_ms))


@bound
def cron(
    *,
    clock: str,
    worker: str,
    retention_ms: int,
    marker: str = "",
    name: str,
    tick: int | str,
    ttl_ms: int,
    overlap: str,
    schedule: str,
    was: str = "",
    rows: Iterable[Argument],
) -> Call:
    return Call(
        lua.load("cron"),
        (clock, worker, retention_ms, marker, name, tick, ttl_ms, overlap, schedule, was, *rows),
    )


@bound
def publish(*, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("publish"), tuple(rows))


@bound
def fold(*, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("fold"), tuple(rows))


@bound
def pressure(*, rows: Iterable[Argument]) -> Call:
    return Call(lua.load("pressure"), tuple(rows))


@dataclass(slots=True)
class NewJob:
    """One row of `enqueue`. Not frozen, as `Claim` is not."""

    job_id: str
    task: str
    lane: str
    envelope: bytes
    key_id: str = ""
    fingerprint: str = ""
    window_ms: int = KEY_WINDOW_MS
    delay_ms: int = 0
    deadline_ms: int = 0  # from enqueue; 0: none
    tenant: str = ""
    max_starts: int = MAX_STARTS
    producer: str = ""
    gates: str = ""  # what it must pass to start, see core/gates.py
    route: str = ""  # why it waits in another lane than was asked for or declared
    backlog: str = ""  # why it waits in the backlog first; '': it does not ask to
    coalesce: str = ""  # its window, see core/coalesce.py; `coalesce` has to take it then
    #: The span of this enqueue; None: nobody traces.
    sending: Sending | None = field(default=None, compare=False, repr=False)

    def row(self) -> tuple[Argument, ...]:
        starts = "" if self.max_starts == MAX_STARTS else str(self.max_starts)
        plain = not (self.key_id or self.delay_ms or self.deadline_ms or self.tenant or starts)
        if plain and not (self.gates or self.route or self.backlog or self.coalesce):
            return (self.job_id, self.task, self.lane, self.envelope, "")
        extra = "\n".join(
            (
                self.key_id,
                self.fingerprint,
                str(self.window_ms) if self.key_id else "",
                str(self.delay_ms) if self.delay_ms else "",
                str(self.deadline_ms) if self.deadline_ms else "",
                self.tenant,
                starts,
                self.producer,
                self.gates,
                f"{self.route} {self.backlog} {self.coalesce}".rstrip(),
            )
        )
        return (self.job_id, self.task, self.lane, self.envelope, extra)


def plan_lines(plan: Plan | None) -> str:
    """The `plan` argument: what each lane may take, most owed first; '' for no plan."""
    if plan is None:
        return ""
    return "\n".join(f"{row.lane} {row.reserved} {row.quota} {row.phase}" for row in plan.rows)


def quarantine_line(lane: str) -> str:
    """The line of a plan that reads one job of a lane's quarantine, into a slot of its own."""
    return f"{lane} 1 0 q"


def offer_lines(entries: Sequence[tuple[str, str, str]]) -> str:
    """The `offers` argument from (lane, kind, entry id)."""
    return "\n".join(f"{lane} {kind} {entry}" for lane, kind, entry in entries)
