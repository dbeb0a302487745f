"""Checks that a server can keep the promise, before a worker claims anything."""

from __future__ import annotations

from typing import Any

from streamworker.core.errors import ConnectionLost, ServerUnsuitable
from streamworker.store.caller import no_cluster, of_cluster, passes
from streamworker.store.connection import Link, ReplyError
from streamworker.store.handshake import redact
from streamworker.store.keys import Keys

#: Came with Redis 7.0 and every fork of it. Versions are not compared: Valkey calls itself 7.2.4 (R49).
PROBE_COMMAND = "FUNCTION"


#: The one maxmemory-policy under which nothing is dropped (R39).
NO_EVICTION = "noeviction"
#: Layout of the keys. A worker refuses a namespace that another layout was written in.
SCHEMA = "1"
#: One shard so far; the hash tag and the job ids carry its number already (D21).
SHARDS = "1"


async def claim_namespace(link: Link, keys: Keys) -> None:
    """Note shard count and schema on first use; refuse a namespace that holds others.

    Raises ServerUnsuitable.
    """
    ours = {"schema": SCHEMA, "shards": SHARDS}
    try:
        found = await link.call("HMGET", keys.meta, *ours)
    except ReplyError as error:
        if of_cluster(error):
            raise no_cluster() from None
        raise
    if None in found:  # else nothing is written: a server that is full takes a worker, which empties it
        for field, value in ours.items():
            await link.call("HSETNX", keys.meta, field, value)
        found = await link.call("HMGET", keys.meta, *ours)
    theirs = {field: value.decode() for field, value in zip(ours, found, strict=True)}
    if theirs != ours:
        raise ServerUnsuitable(
            f"namespace {keys.namespace} holds {_listed(theirs)}, this version works with {_listed(ours)}",
            "use the version that wrote it, or another namespace and let the old one drain",
        )


def _listed(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


async def check_server(link: Link) -> list[str]:
    """Refuse a server that would lose jobs; return warnings, one line each.

    Raises ServerUnsuitable, which says what to do, or ConnectionLost.
    """
    where = redact(link.url)
    await _check_lua(link, where)
    await _check_commands(link, where)
    policy = await eviction_policy(link)
    if policy is None:
        unknown = "does not tell its maxmemory-policy (CONFIG and INFO are refused)"
        return [f"{where} {unknown}: make sure that it is noeviction, or Redis may drop jobs"]
    if policy != NO_EVICTION:
        raise ServerUnsuitable(evicts(link, policy), f"set `maxmemory-policy {NO_EVICTION}`")
    return []


def evicts(link: Link, policy: str) -> str:
    """What is wrong with a server of this policy (R39)."""
    return f"{redact(link.url)} has maxmemory-policy {policy}, which may drop jobs and keys silently"


async def _check_lua(link: Link, where: str) -> None:
    try:
        answer = await link.call("EVAL", "return 1", 0)
    except ReplyError as error:
        if passes(error):
            raise ConnectionLost(f"{where} is not ready: {error}") from None
        answer = error
    if answer != 1:
        raise ServerUnsuitable(
            f"{where} cannot run Lua scripts (EVAL: {answer})",
            "allow EVAL, EVALSHA and SCRIPT for this user; on Valkey load its Lua module",
        )


async def _check_commands(link: Link, where: str) -> None:
    try:
        (found,) = await link.call("COMMAND", "INFO", PROBE_COMMAND)
    except ReplyError:
        return  # COMMAND itself is refused: the scripts will say what is missing
    if not found:
        raise ServerUnsuitable(
            f"{where} is older than Redis 7.0",
            "use Redis 7.0 or later, or Valkey: older ones lose track of deleted stream entries",
        )


async def eviction_policy(link: Link) -> str | None:
    """The server's maxmemory-policy; None: it does not tell."""
    try:
        info = (await link.call("INFO", "memory")).decode()
    except ReplyError:
        info = ""
    for line in info.splitlines():
        name, _, value = line.partition(":")
        if name == "maxmemory_policy":
            return str(value.strip())
    try:
        answer: Any = await link.call("CONFIG", "GET", "maxmemory-policy")
    except ReplyError:
        return None
    return str(answer[1].decode()) if answer else None
