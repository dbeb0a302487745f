"""What a request in the outbox costs a transaction: `python -m benchmarks.outbox [--seconds 5]`.

Eight connections insert an order and commit, over and over: by itself, with `enqueue_in`, and with a
notification. On an embedded Postgres that syncs its log, as one does that is to be trusted.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable

import asyncpg

from streamworker import App, Context, enqueue_in
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.postgres.migrate import migrate

CONNECTIONS = 8
DURABLE = {"fsync": "on", "full_page_writes": "on"}

app = App("outbox")


@app.task
async def ship(ctx: Context, order: int) -> None: ...


Request = Callable[[asyncpg.Connection, int], Awaitable[object]]


async def nothing(connection: asyncpg.Connection, order: int) -> object:
    return None


async def request(connection: asyncpg.Connection, order: int) -> object:
    return await enqueue_in(connection, ship.call(order))


async def request_and_notify(connection: asyncpg.Connection, order: int) -> object:
    return await enqueue_in(connection, ship.call(order), notify=True)


WAYS: dict[str, Request] = {
    "the order alone": nothing,
    "with a request": request,
    "with a request and a notification": request_and_notify,
}


async def rate(dsn: str, also: Request, seconds: float) -> float:
    """Transactions a second."""
    connections = [await asyncpg.connect(dsn) for _ in range(CONNECTIONS)]
    until = time.monotonic() + seconds
    count = 0

    async def go(connection: asyncpg.Connection) -> None:
        nonlocal count
        while time.monotonic() < until:
            async with connection.transaction():
                await connection.execute("INSERT INTO orders (note) VALUES ('an order')")
                await also(connection, count)
            count += 1

    await asyncio.gather(*map(go, connections))
    for connection in connections:
        await connection.close()
    return count / seconds


async def main(seconds: float) -> None:
    with EmbeddedPostgres(config=DURABLE) as server:
        connection = await asyncpg.connect(server.dsn)
        await migrate(connection)
        await connection.execute(
            "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)"
        )
        await connection.close()
        for name, also in WAYS.items():
            found = await rate(server.dsn, also, seconds)
            print(f"{name:35} {found:8.0f} transactions a second, {1e6 * CONNECTIONS / found:6.0f} µs each")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    asyncio.run(main(parser.parse_args().seconds))
