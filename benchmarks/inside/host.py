"""Plays one role of one contender: `python -m benchmarks.inside.host NAME[@VARIANT] ROLE --url URL ...`.

worker   runs jobs and reports when it has run as many as expected, or at the deadline
prepare  makes tables and the like
fill     puts jobs in: one by one, in batches, or with 64 producers at once
pace     puts one job in each interval, once it reads a line from standard input

Each prints one line `FIGURES {json}`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.inside.peer import AsyncPeer, BlockingPeer, Peer
from benchmarks.inside.tally import WARM_UPS, Delays, Tally, say

PRODUCERS = 64
PADDING = "x" * 100
#: Seconds between two warm-up jobs, and of silence after them: the worker is to be idle.
WARM_UP_EVERY = 0.02
SILENCE = 1.0


def load(label: str) -> Peer:
    name, _, variant = label.partition("@")
    peer: Peer = importlib.import_module(f"benchmarks.inside.adapters.{name}").Adapter(variant)
    return peer


def argument(number: int) -> dict[str, Any]:
    return {"n": number, "pad": PADDING}


class Supply:
    """Numbers for the jobs, until there are enough or the time is up."""

    def __init__(self, count: int, deadline: float) -> None:
        self._count = count
        self._end = time.perf_counter() + deadline
        self._numbers = iter(range(count))
        self._put = itertools.count(1)
        self.put = 0

    def __iter__(self) -> Iterator[int]:
        while time.perf_counter() < self._end and (number := next(self._numbers, None)) is not None:
            yield number
            self.put = next(self._put)

    def chunks(self, size: int) -> Iterator[list[dict[str, Any]]]:
        for start in range(0, self._count, size):
            if time.perf_counter() >= self._end:
                return
            chunk = [argument(number) for number in range(start, min(start + size, self._count))]
            yield chunk
            self.put += len(chunk)


async def fill(peer: AsyncPeer, supply: Supply, style: str, chunk: int) -> None:
    async def produce() -> None:
        for number in supply:
            await peer.put(argument(number))

    if style == "batches":
        for many in supply.chunks(chunk):
            await peer.put_many(many)
    else:
        await asyncio.gather(*(produce() for _ in range(PRODUCERS if style == "producers" else 1)))


def fill_blocking(peer: BlockingPeer, supply: Supply, style: str, chunk: int) -> None:
    def produce() -> None:
        for number in supply:
            peer.put(argument(number))

    if style == "batches":
        for many in supply.chunks(chunk):
            peer.put_many(many)
    elif style == "producers":
        threads = [threading.Thread(target=produce) for _ in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        produce()


class Stopwatch:
    def __enter__(self) -> Stopwatch:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._wall
        self.cpu = time.process_time() - self._cpu


async def play_fill(peer: Peer, options: argparse.Namespace) -> None:
    if isinstance(peer, AsyncPeer):
        await peer.connect(options.url)
        supply = Supply(options.count, options.deadline)
        with Stopwatch() as watch:
            await fill(peer, supply, options.style, options.chunk)
        await peer.disconnect()
    else:
        assert isinstance(peer, BlockingPeer)
        peer.connect(options.url)
        supply = Supply(options.count, options.deadline)
        with Stopwatch() as watch:
            fill_blocking(peer, supply, options.style, options.chunk)
        peer.disconnect()
    say("FIGURES", jobs=supply.put, seconds=watch.seconds, client_cpu=watch.cpu)


async def play_pace(peer: Peer, options: argparse.Namespace) -> None:
    assert isinstance(peer, AsyncPeer | BlockingPeer)

    async def put(args: dict[str, Any]) -> None:
        if isinstance(peer, AsyncPeer):
            await peer.put(args)
        else:
            peer.put(args)

    if isinstance(peer, AsyncPeer):
        await peer.connect(options.url)
    else:
        peer.connect(options.url)
    for number in range(WARM_UPS):
        await put(argument(number))
        await asyncio.sleep(WARM_UP_EVERY)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.sleep(SILENCE)
    with Stopwatch() as watch:
        began = time.perf_counter()
        for number in range(options.count):
            wait = began + number * options.interval - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            await put({**argument(number), "sent": str(time.monotonic_ns())})
    say("FIGURES", jobs=options.count, seconds=watch.seconds)


async def play_prepare(peer: Peer, options: argparse.Namespace) -> None:
    await peer.prepare(options.url)
    say("FIGURES")


def play_worker(peer: Peer, options: argparse.Namespace) -> None:
    if options.delays:
        peer.work(options.url, options.slots, Delays(expect=options.expect))
        return
    tally = Tally(
        expect=options.expect,
        deadline=options.deadline,
        redis_pid=options.redis_pid,
        profile_file=options.profile,
    )
    peer.work(options.url, options.slots, tally)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("contender")
    roles = parser.add_subparsers(dest="role", required=True)
    names = ("worker", "fill", "pace", "prepare")
    worker, filler, pacer, preparer = (roles.add_parser(name) for name in names)
    for role in (worker, filler, pacer, preparer):
        role.add_argument("--url", required=True)
    for role in (filler, pacer):
        role.add_argument("--count", type=int, required=True)
    for role in (worker, filler):
        role.add_argument("--deadline", type=float, default=60)
    worker.add_argument("--slots", type=int, required=True)
    worker.add_argument("--expect", type=int, required=True)
    worker.add_argument("--redis-pid", type=int, default=0)
    worker.add_argument("--delays", action="store_true")
    worker.add_argument("--profile")
    filler.add_argument("--style", choices=["single", "batches", "producers"], required=True)
    filler.add_argument("--chunk", type=int, default=0)
    pacer.add_argument("--interval", type=float, required=True)
    options = parser.parse_args()
    sys.argv = sys.argv[:1]  # some workers read it

    peer = load(options.contender)
    if options.role == "worker":
        play_worker(peer, options)
    elif options.role == "prepare":
        asyncio.run(play_prepare(peer, options))
    elif options.role == "fill":
        asyncio.run(play_fill(peer, options))
    else:
        asyncio.run(play_pace(peer, options))


if __name__ == "__main__":
    main()
