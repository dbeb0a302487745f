"""The relay, producers and handlers need no more than the rights that are documented."""

from __future__ import annotations

import asyncpg

from streamworker import App, Context, enqueue_in
from streamworker.outbox.relay import Relay
from streamworker.postgres.connection import connect
from tests.integration.serving import serving
from tests.postgres.conftest import each_postgres as each_postgres
from tests.postgres.test_rights import Roles
from tests.postgres.test_rights import roles as roles
from tests.servers import BenchServer


async def test_each_does_its_work_with_its_own_role(
    roles: Roles, valkey: BenchServer, namespace: str
) -> None:
    app = App("shop", redis_url=valkey.url, namespace=namespace, postgres_dsn=roles.dsn("app"), lease="3s")

    @app.task
    async def pay(ctx: Context, number: int) -> int | None:
        async with ctx.operation("charge") as op:
            op.did_not_happen()
        async with ctx.transaction() as tx:
            await enqueue_in(tx, pay.call(number + 1))
            tx.result = number
        return number

    async with app, serving(app):
        assert await (await pay.enqueue(1)).result(10) == 1
    sql: asyncpg.Connection = await connect(roles.dsn("relay"))
    relay = Relay(app.settings, roles.dsn("relay"), "r")

    assert await relay.round(sql) == 1

    await relay._queue.close()
    await sql.close()
