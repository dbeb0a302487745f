"""lock/acquire, lock/extend and lock/release, as the rules want them (R52 to R57)."""

from __future__ import annotations

from tests.model.shard import Shard


def acquire(shard: Shard, name: str, holder: str, floor: int) -> tuple[str, int | None]:
    """OK and the token: the same for the same holder, else larger than every fence and token before."""
    held = shard.locks.get(name)
    if held is not None and held[0] != holder:
        return "BUSY", None
    if held is None:
        shard.fence = max(shard.fence + 1, shard.now * 1024, floor + 1)
        shard.locks[name] = (holder, shard.fence)
    return "OK", shard.locks[name][1]


def extend(shard: Shard, name: str, holder: str) -> str:
    """Only who holds it."""
    return "OK" if shard.locks.get(name, ("", 0))[0] == holder else "STALE"


def release(shard: Shard, name: str, holder: str) -> str:
    """Only who holds it; what was taken away meanwhile stays with who has it now."""
    if extend(shard, name, holder) == "STALE":
        return "STALE"
    del shard.locks[name]
    return "OK"
