"""A process that reads one cached value many times at once: `python -m tests.apps.fleet_cache READERS KEY`.

It begins when it is sent a line, prints `loaded` for each load, and at the end the values that it read.
"""

from __future__ import annotations

import asyncio
import sys

from streamworker import App, Cache


async def main(readers: int, key: str) -> None:
    async def load() -> str:
        print("loaded", flush=True)
        await asyncio.sleep(0.2)
        return "new"

    async with App("cached", cache=Cache(patience="20s")) as app:  # however busy the machine is
        await app.cache.get("warm", lambda: 1)  # connected
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        values = await asyncio.gather(*(app.cache.get(key, load) for _ in range(readers)))
        print("values", *sorted(set(values)), len(values), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
