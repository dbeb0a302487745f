"""Events that may be merged, as a producer sends them, and what came of them."""

from __future__ import annotations

from typing import Any

import orjson

from streamworker.core.coalesce import Coalesce, Coalescer
from streamworker.core.job import Envelope, encode_envelope
from streamworker.store import scripts
from tests.lua.driver import Shard

#: ms that a window is open in these tests.
WINDOW = 5_000


def event(
    job_id: str,
    mode: str = "collect",
    *items: Any,
    user: int = 7,
    lane: str = "normal",
    tenant: str = "",
    limit: int = 1_000,
    when: str = "always",
    bytes_most: int = 256_000,
    **more: Any,
) -> scripts.NewJob:
    """One event of a user, by default with its own name as the item."""
    declared = Coalesce(mode, window=WINDOW / 1000, by="user:{user}", limit=limit, when=when)
    coalescer = Coalescer("add", ("user", "items"), ("user", "items"), declared)
    args: dict[str, Any] = {"user": user, "items": list(items) or [job_id]}
    encoded, lengths = coalescer.pack(args, limit=1_000_000)
    word = coalescer.word(args, lengths, lane=lane, tenant=tenant or None, limit=bytes_most)
    envelope = encode_envelope("add", encoded)
    return scripts.NewJob(job_id, "add", lane, envelope, tenant=tenant, coalesce=word, **more)


def items_of(envelope: bytes) -> list[Any]:
    """What a merged job is to work on."""
    found = Envelope.decode(envelope).args["items"]
    assert isinstance(found, list)
    return found


def due(shard: Shard) -> str:
    """The disposition of an event that opens a window now."""
    return f"SCHEDULED {shard.now + WINDOW}"


def run_windows(shard: Shard) -> dict[str, list[Any]]:
    """Let all windows end: what each job that is claimed then has to work on."""
    shard.elapse(WINDOW)
    shard.promote()
    return {claim.job_id: items_of(claim.envelope) for claim in shard.claim(limit=100)}


def body(shard: Shard, job_id: str) -> Any:
    """The envelope of a job that waits for its window."""
    return orjson.loads(shard.look().body(job_id)[b"env"])
