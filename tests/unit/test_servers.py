"""The test bench itself: what it lets pass and what it fails."""

from __future__ import annotations

import pytest
import redis

from streamworker.store.keys import Keys
from tests.servers import KINDS, SELECTION_VARIABLE, BenchServer, leaked_keys, selected_kinds
from tests.waiting import wait_until, wait_until_async


def test_a_key_without_ttl_that_is_no_live_state_is_a_leak(valkey: BenchServer, namespace: str) -> None:
    keys = Keys(namespace)
    with redis.Redis.from_url(valkey.url, protocol=2) as client:
        client.set(f"{keys.tag}:nobody-knows-me", 1)
        client.set(f"{{{namespace}}}:nor-me", 1)
        client.set(keys.worker("w1"), 1)
        client.set(keys.worker("w2"), 1, ex=60)
        client.zadd(keys.schedule, {"job": 1})
        client.set(f"{{{namespace}0:0}}:someone-elses", 1)

    assert leaked_keys(valkey.url, namespace) == sorted(
        [f"{keys.tag}:nobody-knows-me", f"{{{namespace}}}:nor-me", keys.worker("w1")]
    )


@pytest.mark.parametrize(
    ("selection", "kinds"),
    [("", KINDS), ("valkey", ("valkey",)), (" redis7, valkey ", ("redis7", "valkey"))],
)
def test_the_kinds_of_servers_can_be_narrowed(
    monkeypatch: pytest.MonkeyPatch, selection: str, kinds: tuple[str, ...]
) -> None:
    monkeypatch.setenv(SELECTION_VARIABLE, selection)

    assert selected_kinds() == kinds


def test_an_unknown_kind_of_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SELECTION_VARIABLE, "valky")

    with pytest.raises(ValueError, match="names valky; known are valkey"):
        selected_kinds()


def test_waiting_returns_the_first_true_value() -> None:
    values = iter([0, None, "there"])

    assert wait_until(lambda: next(values), what="it is there") == "there"


def test_waiting_in_vain_says_for_what_and_what_it_saw() -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.01 s in vain until it is there; .* was 0"):
        wait_until(lambda: 0, timeout=0.01, what="it is there")


async def test_waiting_in_a_loop_takes_functions_of_both_kinds() -> None:
    values = iter([0, 0, 7])

    async def read() -> int:
        return next(values)

    assert await wait_until_async(read, what="it is there") == 7
    assert await wait_until_async(lambda: "now", what="it is there") == "now"
    with pytest.raises(AssertionError, match="in vain until never"):
        await wait_until_async(lambda: None, timeout=0.01, what="never")
