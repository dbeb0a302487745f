"""The checks of `doctor` on the server: can it keep what it is given?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamworker.core.durations import format_ms
from streamworker.core.errors import ServerUnsuitable
from streamworker.core.text import counted
from streamworker.ops.checks import Finding, ok, problem, warning
from streamworker.store.connection import ReplyError
from streamworker.store.events import pairs
from streamworker.store.queue import Queue
from streamworker.store.server import check_server

#: Settings that are looked at.
SETTINGS = (
    "maxmemory",
    "maxmemory-policy",
    "appendonly",
    "appendfsync",
    "timeout",
    "tcp-keepalive",
    "min-replicas-to-write",
    "min-slaves-to-write",
)
#: Parts of maxmemory in use from which a warning, or a problem, is made.
MEMORY_WARNING, MEMORY_PROBLEM = 0.80, 0.95
#: Seconds between our clock and Redis's that nobody need care about.
CLOCK_TOLERANCE = 2.0
#: ms that the newest entry of the log may be ahead of Redis's clock.
PUT_BACK_MS = 5000


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server tells of itself; what it refuses to tell is not in here."""

    settings: Mapping[str, str]
    info: Mapping[str, str]

    def number(self, name: str) -> int | None:
        """A number of INFO or CONFIG, if told."""
        value = self.info.get(name, self.settings.get(name, ""))
        return int(value) if value.isdecimal() else None


async def read_facts(queue: Queue) -> Facts:
    """INFO and CONFIG, as far as this user may ask for them."""
    settings: dict[str, str] = {}
    for name in SETTINGS:
        answer = await _allowed(queue, "CONFIG", "GET", name)
        settings.update({key.decode(): value.decode() for key, value in pairs(answer or []).items()})
    text = await _allowed(queue, "INFO")
    lines = [line.partition(":") for line in (text or b"").decode("utf-8", "replace").splitlines()]
    return Facts(settings, {name: value.strip() for name, colon, value in lines if colon})


async def _allowed(queue: Queue, *command: str) -> Any:
    try:
        return await queue.caller.command(*command)
    except ReplyError:
        return None


async def check(queue: Queue) -> list[Finding]:
    """All checks on the server. Raises ConnectionLost, or ServerUnsuitable for a refused password."""
    link = await queue.caller.ready()
    facts = await read_facts(queue)
    found = [server(facts)]
    usable = ok("commands", "streams and scripts can be used")
    try:
        await check_server(link)
    except ServerUnsuitable as error:
        if "maxmemory-policy" not in str(error):  # that one has a check of its own
            usable = problem("commands", error.problem, error.remedy)
    found.append(usable)
    found += [eviction(facts), memory(facts), persistence(facts), saving(facts), replication(facts)]
    found += [connections(facts, queue.settings.lease), await clock(queue)]
    return found + await put_back(queue)


def server(facts: Facts) -> Finding:
    """Which server it is. Versions are told, not compared (R49)."""
    info = facts.info
    if not info:
        return warning("server", "INFO is refused", "allow INFO for this user, or look at the server by hand")
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "?")
    shown = f"{name} {version}, {info.get('redis_mode', info.get('server_mode', 'standalone'))}"
    if info.get("cluster_enabled") == "1":
        return problem("server", shown, "Redis Cluster is not supported yet: use one server with replicas")
    return ok("server", shown)


def eviction(facts: Facts) -> Finding:
    """Nothing may be thrown out when memory is short (R39)."""
    policy = facts.settings.get("maxmemory-policy") or facts.info.get("maxmemory_policy")
    if policy is None:
        return warning("eviction", "maxmemory-policy is not told", "make sure that it is noeviction")
    if policy != "noeviction":
        return problem(
            "eviction",
            f"maxmemory-policy {policy}: jobs and keys may be dropped silently",
            "set `maxmemory-policy noeviction`; workers refuse anything else",
        )
    return ok("eviction", "maxmemory-policy noeviction")


def memory(facts: Facts) -> Finding:
    """There is a limit, and it is far away."""
    limit, used = facts.number("maxmemory"), facts.number("used_memory")
    if limit is None or used is None:
        return warning("memory", "maxmemory and its use are not told", "watch the server's memory by hand")
    if limit == 0:
        return warning(
            "memory",
            f"no maxmemory, {_bytes(used)} used: a long queue grows until the system kills Redis",
            "set `maxmemory` to what the machine can spare, so that enqueue is refused instead",
        )
    part = used / limit
    shown = f"{_bytes(used)} of {_bytes(limit)} used ({part:.0%})"
    if part >= MEMORY_WARNING:
        make = problem if part >= MEMORY_PROBLEM else warning
        return make("memory", shown, "enqueue is refused at 100 %: add workers, or raise `maxmemory`")
    return ok("memory", shown)


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} kB"


def persistence(facts: Facts) -> Finding:
    """The append-only file is on (R40)."""
    enabled = facts.settings.get("appendonly") or {"1": "yes", "0": "no"}.get(
        facts.info.get("aof_enabled", "")
    )
    fsync = facts.settings.get("appendfsync")
    if enabled is None:
        return warning("persistence", "appendonly is not told", "make sure that AOF is on, with everysec")
    if enabled != "yes":
        return problem(
            "persistence",
            "appendonly no: a restart of Redis loses jobs",
            "set `appendonly yes` and `appendfsync everysec`",
        )
    if fsync == "no":
        return problem(
            "persistence",
            "appendfsync no: a crash of the machine may lose half a minute of jobs",
            "set `appendfsync everysec`, which loses a second at most, or `always`",
        )
    return ok("persistence", f"appendonly yes, appendfsync {fsync or 'not told'}")


def saving(facts: Facts) -> Finding:
    """What is to be on disk gets there."""
    failing = [
        name
        for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
        if facts.info.get(name, "ok") != "ok"
    ]
    if facts.info.get("loading") == "1":
        return problem("saving", "the server is loading its data", "wait until it is ready")
    if failing:
        return problem(
            "saving",
            f"{', '.join(failing)}: err",
            "look into the server's log: mostly the disk is full or not writable",
        )
    return ok("saving", "no write to disk has failed")


def replication(facts: Facts) -> Finding:
    """We talk to a primary that does not go on alone when it is cut off (R41)."""
    if facts.info.get("role") == "slave":
        return problem(
            "replication",
            f"this is a replica of {facts.info.get('master_host', '?')}",
            "connect to the primary: a replica takes no jobs",
        )
    replicas = facts.number("connected_slaves") or 0
    least = facts.settings.get("min-replicas-to-write") or facts.settings.get("min-slaves-to-write")
    if replicas and least == "0":
        return warning(
            "replication",
            f"{replicas} replicas, min-replicas-to-write 0: a primary that is cut off goes on accepting jobs "
            "that a failover loses",
            "set `min-replicas-to-write 1`",
        )
    return ok("replication", f"primary, {replicas} replicas" if replicas else "a single server")


def connections(facts: Facts, lease: float) -> Finding:
    """Redis does not close connections that are merely quiet."""
    timeout, keepalive = facts.settings.get("timeout"), facts.settings.get("tcp-keepalive")
    if timeout is None:
        return warning("connections", "timeout is not told", "make sure that `timeout` is 0")
    if timeout != "0":
        found = f"timeout {timeout}: Redis closes connections that are quiet for {timeout} s"
        if int(timeout) <= lease / 3:
            advice = "set `timeout 0`: workers speak each third of a lease, and would reconnect each time"
            return problem("connections", found, advice)
        return warning("connections", found, "set `timeout 0`: producers reconnect after each pause")
    if keepalive == "0":
        return warning(
            "connections",
            "tcp-keepalive 0: connections of dead machines stay open for ever",
            "set `tcp-keepalive 300`",
        )
    return ok("connections", "quiet connections stay open, dead ones are found")


async def clock(queue: Queue) -> Finding:
    """Our clock beside Redis's, which alone decides (R36)."""
    before = time.time()
    seconds, micros = await queue.caller.command("TIME")
    after = time.time()
    skew = int(seconds) + int(micros) / 1e6 - (before + after) / 2
    shown = f"Redis's clock is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    if abs(skew) > CLOCK_TOLERANCE + (after - before):
        return warning(
            "clock",
            shown,
            "let both follow NTP: jobs run by Redis's clock, logs and workers' start times by the machine's",
        )
    return ok("clock", shown)


async def put_back(queue: Queue) -> list[Finding]:
    """A finding if Redis's clock was put back, as by a failover to a server whose clock is behind.

    The ids of the log never go back: the newest that there ever was tells.
    """
    try:
        log = pairs(await queue.caller.command("XINFO", "STREAM", queue.keys.events))
    except ReplyError:  # nothing was logged yet
        return []
    seconds, micros = await queue.caller.command("TIME")
    newest_ms = int(log[b"last-generated-id"].partition(b"-")[0])
    ahead_ms = newest_ms - (int(seconds) * 1000 + int(micros) // 1000)
    if ahead_ms <= PUT_BACK_MS:
        return []
    waiting = int(await queue.caller.command("ZCARD", queue.keys.schedule))
    return [
        warning(
            "clock",
            f"Redis's clock was put back: the log has entries of {format_ms(ahead_ms)} from now. What had a "
            f"due time by then waits so much longer, such as retries, delays ({counted(waiting, 'job')} in "
            "the schedule) and pauses for a time",
            "mend the clock (NTP), or let them go on: streamworker jobs hasten ID…, resume",
        )
    ]
