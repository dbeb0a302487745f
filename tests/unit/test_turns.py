"""Turns are taken in the order of those who came, and none is lost."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from streamworker.store.turns import Turns
from tests.waiting import wait_until


def waiting(turns: Turns, count: int) -> None:
    wait_until(lambda: len(turns._waiting) == count, what=f"{count} wait")


def test_who_gives_a_turn_back_does_not_have_it_again_before_who_waits() -> None:
    """With `threading.Semaphore` it does: of 32 threads with 16 connections one had none for ten seconds."""
    turns, order = Turns(1), []
    assert turns.take()

    def wait(name: str) -> None:
        assert turns.take(10)
        order.append(name)
        turns.give()

    threads = []
    for number, name in enumerate("abc"):
        threads.append(threading.Thread(target=wait, args=(name,)))
        threads[-1].start()
        waiting(turns, number + 1)
    turns.give()
    assert turns.take(10)
    order.append("me")
    turns.give()
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "c", "me"]


def test_a_turn_that_does_not_come_is_not_waited_for() -> None:
    turns = Turns(1)
    assert turns.take()
    assert not turns.take(0.01)
    assert not turns.take(0)
    turns.give()
    assert turns.take(0)


def test_a_turn_that_comes_as_patience_ends_is_taken() -> None:
    turns = Turns(0)

    class Late:
        """A lock that gives up in the moment in which it is opened."""

        def acquire(self, timeout: float) -> bool:
            turns.give()
            return False

        def release(self) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamworker.store.turns.threading", _Locks(threading.Lock, Late()))
        assert turns.take(0.01)
    assert turns._free == 0


class _Locks:
    """`threading` of which the lock that is waited for is another."""

    def __init__(self, real: object, late: object) -> None:
        self.Lock = lambda: _Once(late)


class _Once:
    """Its first acquire is that of a lock that nobody holds."""

    def __init__(self, late: object) -> None:
        self._late, self._taken = late, False

    def acquire(self, timeout: float = -1) -> bool:
        if not self._taken:
            self._taken = True
            return True
        return bool(self._late.acquire(timeout))  # type: ignore[attr-defined]

    def release(self) -> None:
        pass


def test_ctrl_c_while_waiting_loses_no_turn() -> None:
    turns = Turns(1)
    assert turns.take()
    timer = threading.Timer(0.05, signal.raise_signal, (signal.SIGINT,))
    main = threading.main_thread().ident
    assert main is not None
    timer.function, timer.args = signal.pthread_kill, (main, signal.SIGINT)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        turns.take(10)
    assert not turns._waiting
    turns.give()
    assert turns._free == 1


def test_many_threads_all_get_on() -> None:
    turns, done, most, inside = Turns(3), [0] * 12, 0, 0
    until = time.monotonic() + 0.3

    def work(number: int) -> None:
        nonlocal most, inside
        while time.monotonic() < until:
            assert turns.take(10)
            inside += 1
            most = max(most, inside)
            done[number] += 1
            inside -= 1
            turns.give()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turns._free == 3
    assert min(done) > 0
