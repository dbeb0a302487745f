"""Under OOM a job that waits at a gate moves on like any other; only what is new is refused (R31)."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Success
from streamworker.store.connection import ReplyError
from tests.lua.driver import Shard, job
from tests.lua.gating import fill, holders, ids
from tests.lua.test_out_of_memory import alone, out_of_memory

__all__ = ["alone"]

LIMIT = "0 concurrency:g|1"


def test_claims_park_and_ends_let_the_next_in(alone: Shard) -> None:
    fill(alone, "a", "b", gates=LIMIT)
    alone.session()

    with out_of_memory(alone):
        (a,) = alone.claim()
        alone.check("b", place="concurrency:g")
        alone.settle(a, Success())
        assert holders(alone, "concurrency:g") == {"b": "granted"}
        assert ids(alone.claim()) == ["b"]


def test_wake_and_tune_go_on(alone: Shard) -> None:
    alone.watchful = False  # each look would read all 1,200
    for start in (0, 600):  # so many gates that they are not seen in one step
        alone.enqueue(*(job(f"j{start + i}", gates=f"0 entity:e:{i}", lane="other") for i in range(600)))
    fill(alone, "a", "b", gates=LIMIT)
    alone.claim()

    with out_of_memory(alone):
        alone.tune("limit", "concurrency:g", "2")
        alone.tune("pause", "lane:normal")
        alone.tune("resume", "lane:normal", 0)
        while alone.wake()[0]:
            pass
        alone.watchful = True
        assert ids(alone.claim()) == ["b"]


def test_a_new_job_for_an_entity_is_refused_whole(alone: Shard) -> None:
    before = alone.look()

    with out_of_memory(alone), pytest.raises(ReplyError, match="maxmemory"):
        alone.enqueue(job("a", gates="0 entity:e:1"), job("b", gates="0 entity:e:1"))

    assert alone.look() == before


def test_a_job_of_a_crowded_tenant_moves_in(alone: Shard) -> None:
    alone.enqueue(*(job(f"t{i}", tenant="acme") for i in range(20)))
    alone.session()

    with out_of_memory(alone):
        ran = []
        while claims := alone.claim(limit=8):
            ran += ids(claims)
            for claim in claims:
                alone.settle(claim, Success())

    assert ran == [f"t{i}" for i in range(20)]
