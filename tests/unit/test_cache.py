"""A cache that nobody attached, as in a test of a handler."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamworker import Cache, ConfigurationError, Context, InvalidArgument


class Source:
    """Counts how often it is asked."""

    loads = 0

    async def load(self) -> int:
        self.loads += 1
        return 1


async def test_a_context_of_ones_own_keeps_nothing() -> None:
    ctx = Context("j", "t", "j", 1, 1, "normal", None, "j")
    source = Source()

    assert [await ctx.cache.get("k", source.load) for _ in range(2)] == [1, 1]
    assert source.loads == 2
    ctx.invalidate("k")
    with pytest.raises(InvalidArgument, match="cache key"):
        ctx.invalidate("")


def test_a_context_of_ones_own_reads_in_a_plain_function() -> None:
    ctx = Context("j", "t", "j", 1, 1, "normal", None, "j")

    assert ctx.cache.get_sync("k", lambda: 5) == 5


async def test_a_load_that_finds_no_next_ends() -> None:
    """A future cannot hold a StopIteration: who waited for the thread did so for ever."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        async with asyncio.timeout(2):
            await Cache().get("k", lambda: next(iter(())))


@pytest.mark.parametrize("options", [{"ttl": 0}, {"patience": 0}])
def test_what_makes_no_cache_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        Cache(**options)
