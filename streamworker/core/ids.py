"""Job ids: UUIDv7 text (RFC 9562) whose 12 `rand_a` bits carry the shard.

A look-up by id so knows its shard without asking anybody (D21).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from streamworker.core.errors import InvalidArgument

#: Shards that fit into the 12 bits.
MAX_SHARDS = 4096
#: Random bytes in one id: 62 of their 64 bits are used.
RANDOM_BYTES = 8

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)
#: Ids whose random bytes are read from the system at once.
_BLOCK = 256


def new_job_id(*, now_ms: int, shard: int = 0, random: bytes) -> str:
    """Return a job id made of the time, the shard and 8 random bytes.

    Raises ValueError when the shard does not fit into 12 bits, the time into 48, or `random` is not 8 bytes.
    """
    if not 0 <= shard < MAX_SHARDS:
        raise ValueError(f"shard {shard} is outside 0..{MAX_SHARDS - 1}")
    if not 0 <= now_ms < 1 << 48:
        raise ValueError(f"now_ms {now_ms} does not fit into 48 bits")
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"random must be {RANDOM_BYTES} bytes, got {len(random)}")
    tail = int.from_bytes(random) & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000
    digits = f"{now_ms:012x}7{shard:03x}{tail:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def shard_of(job_id: str) -> int:
    """Return the shard that a job id carries. Raises InvalidArgument when it is no job id."""
    return int(check_job_id(job_id)[15:18], 16)


def time_of(job_id: str) -> int:
    """Return the ms since the epoch that a job id carries."""
    return int(job_id[:8] + job_id[9:13], 16)


def check_job_id(text: object) -> str:
    """Return `text` if it is a job id. Raises InvalidArgument (a ValueError)."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise InvalidArgument("job id", text, "a job id is a UUIDv7 in lower case, as enqueue returned it")
    return text


class JobIds:
    """Makes job ids fast: random bytes come in blocks, one read of the system for 256 ids.

    Safe in threads and after fork: a child never hands out what its parent has read.
    """

    __slots__ = ("_clock_ms", "_pid", "_pool", "_random_bytes")

    def __init__(
        self, clock_ms: Callable[[], int], *, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> None:
        self._clock_ms = clock_ms
        self._random_bytes = random_bytes
        self._pool: list[bytes] = []
        self._pid = os.getpid()

    def new(self, shard: int = 0) -> str:
        """Return a fresh job id of that shard."""
        if self._pid != os.getpid():
            self._pool, self._pid = [], os.getpid()
        try:
            random = self._pool.pop()  # one step under the GIL: two threads never get the same bytes
        except IndexError:
            block = self._random_bytes(_BLOCK * RANDOM_BYTES)
            fresh = [block[i : i + RANDOM_BYTES] for i in range(0, len(block), RANDOM_BYTES)]
            random = fresh.pop()
            self._pool = fresh
        return new_job_id(now_ms=self._clock_ms(), shard=shard, random=random)
