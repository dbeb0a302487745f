from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.errors import InvalidArgument
from streamworker.core.ids import MAX_SHARDS, JobIds, check_job_id, new_job_id, shard_of


@given(
    now_ms=st.integers(0, 2**48 - 1),
    shard=st.integers(0, MAX_SHARDS - 1),
    random=st.binary(min_size=8, max_size=8),
)
def test_a_job_id_is_a_uuid7_that_carries_time_and_shard(now_ms: int, shard: int, random: bytes) -> None:
    job_id = new_job_id(now_ms=now_ms, shard=shard, random=random)

    parsed = uuid.UUID(job_id)
    assert str(parsed) == job_id
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == now_ms
    assert shard_of(job_id) == shard
    assert check_job_id(job_id) == job_id


def test_all_62_random_bits_reach_the_id() -> None:
    ids = {new_job_id(now_ms=0, random=(1 << bit).to_bytes(8)) for bit in range(62)}

    assert len(ids) == 62


@pytest.mark.parametrize(
    "arguments",
    [
        {"now_ms": -1, "random": bytes(8)},
        {"now_ms": 2**48, "random": bytes(8)},
        {"now_ms": 0, "random": bytes(7)},
        {"now_ms": 0, "random": bytes(8), "shard": -1},
        {"now_ms": 0, "random": bytes(8), "shard": MAX_SHARDS},
    ],
)
def test_what_does_not_fit_into_an_id_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"shard|now_ms|random"):
        new_job_id(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        None,
        7,
        str(uuid.UUID(int=0)),
        "018f3f2e-0000-4000-8000-000000000000",
        "018F3F2E-0000-7000-8000-000000000000",
        "018f3f2e-0000-7000-0000-000000000000",
        "018f3f2e-0000-7000-8000-000000000000\n",
    ],
)
def test_what_is_no_job_id_is_refused_clearly(text: object) -> None:
    with pytest.raises(InvalidArgument, match=r"job id .* UUIDv7"):
        check_job_id(text)
    with pytest.raises(ValueError, match="job id"):
        shard_of(text)  # type: ignore[arg-type]


def test_ids_of_one_generator_differ_and_sort_by_time() -> None:
    now = iter(range(1000, 3000))
    ids = JobIds(lambda: next(now))

    made = [ids.new(shard=5) for _ in range(2000)]

    assert len(set(made)) == 2000
    assert made == sorted(made)
    assert {shard_of(job_id) for job_id in made} == {5}


def test_random_bytes_are_read_in_blocks() -> None:
    reads: list[int] = []

    def read(size: int) -> bytes:
        reads.append(size)
        return os.urandom(size)

    ids = JobIds(lambda: 0, random_bytes=read)
    for _ in range(256):
        ids.new()

    assert reads == [2048]


def test_threads_never_get_the_same_id() -> None:
    ids = JobIds(lambda: 0)

    with ThreadPoolExecutor(4) as pool:
        made = [
            job_id
            for batch in pool.map(lambda _: [ids.new() for _ in range(2000)], range(4))
            for job_id in batch
        ]

    assert len(set(made)) == 8000


def test_a_forked_child_does_not_repeat_the_ids_of_its_parent() -> None:
    ids = JobIds(lambda: 0)
    ids.new()
    receive, send = os.pipe()

    child = os.fork()
    if child == 0:
        os.write(send, ids.new().encode())
        os._exit(0)
    os.waitpid(child, 0)
    from_child = os.read(receive, 36).decode()
    os.close(receive)
    os.close(send)

    assert from_child != ids.new()
    assert check_job_id(from_child)
