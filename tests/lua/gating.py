"""Short words for tests of gates."""

from __future__ import annotations

from typing import Any

from streamworker.core.job import Claim
from streamworker.core.outcome import Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from tests.lua.driver import LEASE, Shard, job, plan_of

LOCK = "0 entity:order:7"
LIMIT = "0 concurrency:task:add|2"
BOTH = "0 entity:order:7 concurrency:task:add|2"
RETRY = Retry(500, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")
BACK = Release(Reason.SHUTDOWN)
LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "", "-", Reason.RECOVERED)
#: The row of a plan that reads the quarantine.
APART = ("normal", 1, 0, "q")
#: ms after which a grant that nobody claims goes back.
UNCLAIMED = 5000


def fill(shard: Shard, *names: str, gates: str = LOCK, **options: Any) -> None:
    shard.enqueue(*(job(name, gates=gates, **options) for name in names))


def ids(claims: list[Claim]) -> list[str]:
    return [claim.job_id for claim in claims]


def holders(shard: Shard, gate: str = "entity:order:7") -> dict[str, str]:
    """Who holds the gate: `runs`, or `granted` and not claimed."""
    return {
        job_id: "runs" if score > 0 else "granted" for job_id, score in shard.look().holders(gate).items()
    }


def waiters(shard: Shard, gate: str = "entity:order:7", lane: str = "normal") -> list[str]:
    return list(shard.look().zsets.get(f"waiting:{lane}:{gate}", {}))


def places(shard: Shard, *names: str) -> dict[str, object]:
    return {name: shard.state(name)["place"] for name in names}


def granted(shard: Shard, gates: str = "0 concurrency:g|1", *others: str) -> Claim:
    """`a` ran and ended, `b` has its place and stands in ready, `c` and others wait; returns a's claim."""
    fill(shard, "a", "b", "c", *others, gates=gates)
    (a,) = shard.claim()
    shard.settle(a, Success())
    return a


def die(shard: Shard, outcome: Retry = LOST) -> None:
    """The one job that can be claimed is; its worker dies and the job is recovered."""
    shard.pass_hold()
    (claim,) = shard.claim(plan=plan_of("normal", APART))
    shard.elapse(LEASE)
    (candidate,) = shard.found_dead(kind=claim.kind)
    assert shard.recovery(candidate, outcome) == "OK"
