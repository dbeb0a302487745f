"""`ctx.transaction()`: what is written in it happens once, however often the handler runs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import asyncpg
import pytest

from streamworker import App, ConfigurationError, Context, PersistentError, Retry, TransientError
from streamworker.core.states import Status
from tests.effects.reading import invoices, operations, reasons
from tests.integration.serving import failure, serving
from tests.waiting import wait_until_async

SOON = Retry.schedule("10ms", "10ms", "10ms", unknown=["10ms", "10ms"])
pytestmark = pytest.mark.usefixtures("no_leaks")


async def test_what_was_written_and_the_word_of_it_commit_together(
    app: App, shop: asyncpg.Connection
) -> None:
    @app.task
    async def pay(ctx: Context, payment: str) -> Any:
        async with ctx.transaction() as tx:
            tx.result = await tx.fetchval(
                "INSERT INTO invoices (payment_id) VALUES ($1) RETURNING id", payment
            )

    async with serving(app):
        job = await pay.options(key="p1").enqueue("p1")
        assert await job.result(10) == 1, "a handler that returns nothing gives what the transaction recorded"

    (row,) = await operations(shop)
    assert (row["operation_type"], row["idempotency_key"], row["step"]) == ("pay", "p1", "")
    assert (row["status"], row["result"], str(row["job_id"])) == ("succeeded", b"1", job.id)


async def test_the_next_attempt_gets_the_recorded_result_without_running_the_block(
    app: App, shop: asyncpg.Connection
) -> None:
    ran: list[str] = []

    @app.task(retry=SOON)
    async def pay(ctx: Context, payment: str) -> dict[str, Any]:
        ran.append("before")
        async with ctx.transaction() as tx:
            number = await tx.fetchval("INSERT INTO invoices (payment_id) VALUES ($1) RETURNING id", payment)
            tx.result = {"invoice": number}
        ran.append("after")
        if ctx.attempt == 1:
            raise TransientError("after the commit")
        return {"invoice": number}

    async with serving(app):
        job = await pay.enqueue("p1")
        assert await job.result(10) == {"invoice": 1}

    assert await invoices(shop) == {"p1": 1}
    assert ran == ["before", "after", "before"]
    assert (await reasons(app, job.id))[-1] == "effect_committed"


async def test_an_error_in_the_block_leaves_nothing(app: App, shop: asyncpg.Connection) -> None:
    @app.task(retry=SOON)
    async def pay(ctx: Context, payment: str) -> int:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment)
            if ctx.attempt < 3:
                raise TransientError("no")
        return ctx.attempt

    async with serving(app):
        assert await (await pay.enqueue("p1")).result(10) == 3

    assert await invoices(shop) == {"p1": 1}


async def test_of_two_attempts_of_one_key_at_once_one_has_the_effect_and_both_the_result(
    app: App, shop: asyncpg.Connection, namespace: str
) -> None:
    """A second job of the key, as after a flush: it waits for the first and gets its result."""
    inside, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def pay(ctx: Context, payment: str) -> Any:
        async with ctx.transaction() as tx:
            tx.result = await tx.fetchval(
                "INSERT INTO invoices (payment_id) VALUES ($1) RETURNING id", payment
            )
            inside.set()
            await go.wait()

    async with serving(app):
        first = await pay.options(key="p1").enqueue("p1")
        await inside.wait()
        queue = app.queue()
        await queue.caller.command("DEL", queue.keys.key("pay::p1"))
        second = await pay.options(key="p1").enqueue("p1")
        assert second.id != first.id

        async def waits() -> bool:
            return bool(
                await shop.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                    "AND datname = current_database()"
                )
            )

        await wait_until_async(waits, what="the rival waits for the row")
        go.set()
        assert await first.result(10) == await second.result(10) == 1

    assert await invoices(shop) == {"p1": 1}


async def test_the_same_key_with_other_arguments_is_a_conflict(app: App, shop: asyncpg.Connection) -> None:
    @app.task
    async def pay(ctx: Context, payment: str) -> Any:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment)

    async with serving(app):
        await (await pay.options(key="k").enqueue("p1")).result(10)
        queue = app.queue()
        await queue.caller.command("DEL", queue.keys.key("pay::k"))
        error = await failure(await pay.options(key="k").enqueue("p2"))

    assert (error.error_class, error.code) == ("persistent", "operation_conflict")
    assert await invoices(shop) == {"p1": 1}


async def test_a_committed_effect_wins_over_a_last_attempt_that_fails(
    app: App, shop: asyncpg.Connection
) -> None:
    @app.task
    async def pay(ctx: Context, payment: str) -> Any:
        async with ctx.transaction() as tx:
            tx.result = await tx.fetchval(
                "INSERT INTO invoices (payment_id) VALUES ($1) RETURNING id", payment
            )
        raise PersistentError("after the commit")

    async with serving(app):
        job = await pay.enqueue("p1")
        assert await job.result(10) == 1

    assert await job.status() is Status.SUCCEEDED
    assert (await reasons(app, job.id))[-4:] == ["burial", "burial", "started", "effect_committed"]


async def test_a_job_without_effect_ends_as_it_was_to_end(app: App, shop: asyncpg.Connection) -> None:
    @app.task
    async def pay(ctx: Context, payment: str) -> Any:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment)
            raise PersistentError("no such account", code="no_account")

    async with serving(app):
        job = await pay.enqueue("p1")
        error = await failure(job)

    assert (error.code, error.error) == ("no_account", "PersistentError: no such account")
    assert await invoices(shop) == {}
    (row,) = await operations(shop)
    assert row["status"] == "buried", "a handler that comes late finds it"


async def test_a_replayed_job_may_have_its_effect(app: App, shop: asyncpg.Connection) -> None:
    willing: list[bool] = []

    @app.task
    async def pay(ctx: Context, payment: str) -> Any:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment)
            if not willing:
                raise PersistentError("no")

    async with serving(app):
        job = await pay.options(key="p1").enqueue("p1")
        await failure(job)
        willing.append(True)
        again = await pay.options(key="p1").enqueue("p1")
        await again.result(10)

    assert again.id != job.id
    assert await invoices(shop) == {"p1": 1}


async def test_a_handler_that_comes_after_burial_is_refused(app: App, shop: asyncpg.Connection) -> None:
    """It was frozen, say: its job has failed, so its effect may not appear any more."""
    inside, go = asyncio.Event(), asyncio.Event()
    seen: list[BaseException] = []

    @app.task
    async def pay(ctx: Context, payment: str) -> Any:
        inside.set()
        await go.wait()
        try:
            async with ctx.transaction() as tx:
                await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment)
        except Exception as error:
            seen.append(error)
            raise

    async with serving(app):
        job = await pay.enqueue("p1")
        await inside.wait()
        await shop.execute(
            "INSERT INTO streamworker.processed_operations "
            "(namespace, operation_type, idempotency_key, status, fence) "
            "VALUES ($1, 'pay', $2, 'buried', $3)",
            app.settings.namespace,
            job.id,
            2**60,
        )
        go.set()
        await wait_until_async(lambda: seen, what="the handler is refused")

    assert type(seen[0]).__name__ == "FencedOut"
    assert await invoices(shop) == {}


async def test_named_steps_happen_once_each_and_the_rest_goes_on(app: App, shop: asyncpg.Connection) -> None:
    @app.task(retry=SOON)
    async def fulfil(ctx: Context, order: str) -> list[Any]:
        async with ctx.transaction("reserve") as reserve:
            reserve.result = await reserve.fetchval(
                "INSERT INTO invoices (payment_id) VALUES ($1) RETURNING id", f"{order}:reserve"
            )
        if ctx.attempt == 1:
            raise TransientError("between the steps")
        async with ctx.transaction("pack") as pack:
            await pack.execute("INSERT INTO invoices (payment_id) VALUES ($1)", f"{order}:pack")
        if ctx.attempt == 2:
            raise TransientError("after the steps")
        return [reserve.result, reserve.done, pack.done]

    async with serving(app):
        assert await (await fulfil.enqueue("o7")).result(10) == [1, True, True]

    assert await invoices(shop) == {"o7:reserve": 1, "o7:pack": 1}


@pytest.mark.parametrize("what", ["twice", "within", "named twice", "plain", "operation without a name"])
async def test_what_cannot_be_meant_is_refused(app: App, what: str) -> None:
    @app.task(retry=Retry.never())
    async def pay(ctx: Context) -> Any:
        match what:
            case "twice":
                async with ctx.transaction():
                    pass
                ctx.transaction()
            case "named twice":
                ctx.transaction("a")
                ctx.transaction("a")
            case "within":
                async with ctx.transaction("a"), ctx.transaction("b"):
                    pass
            case "plain":
                with ctx.transaction():
                    pass
            case _:
                ctx.operation("")

    async with serving(app):
        job = await pay.enqueue()
        if what == "twice":
            assert await job.result(10) is None, "the first had committed"
            return
        failed = await failure(job)
        assert (failed.code, failed.error_class) == ("configuration_error", "persistent"), "no retry mends it"


async def test_without_a_postgres_it_says_what_is_missing(
    app: App, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.use_settings(type(app.settings)(app.settings.namespace, app.settings.redis_url))
    said: list[str] = []

    @app.task(retry=Retry.never())
    async def pay(ctx: Context) -> Any:
        try:
            ctx.transaction()
        except ConfigurationError as error:
            said.append(str(error))

    async with serving(app):
        await (await pay.enqueue()).result(10)

    assert "STREAMWORKER_POSTGRES_DSN" in said[0]


@pytest.mark.parametrize("what", ["transaction", "operation"])
async def test_a_plain_function_learns_at_once_that_it_has_no_transaction(
    app: App, shop: asyncpg.Connection, what: str
) -> None:
    @app.task(retry=SOON)
    def pay(ctx: Context) -> Any:
        with ctx.transaction() if what == "transaction" else ctx.operation("charge"):
            raise AssertionError("nothing keeps what is done here")

    async with serving(app):
        job = await pay.enqueue()
        failed = await failure(job)
        assert (failed.code, failed.error_class) == ("configuration_error", "persistent")
        assert "for coroutine handlers" in failed.error
        assert (await app.queue().record(job.id)).starts == 1


async def test_a_handler_that_is_stopped_in_the_block_leaves_nothing(
    app: App, shop: asyncpg.Connection
) -> None:
    @app.task(timeout="100ms", retry=Retry.never())
    async def pay(ctx: Context, payment: str) -> Any:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment)
            await asyncio.sleep(30)

    async with serving(app):
        assert (await failure(await pay.enqueue("p1"))).code == "timeout"

    assert await invoices(shop) == {}


async def test_jobs_of_two_entities_with_one_key_are_two(app: App, shop: asyncpg.Connection) -> None:
    @app.task(entity="order:{order}")
    async def pay(ctx: Context, order: int) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", f"o{order}")

    async with serving(app):
        for order in (7, 8):
            await (await pay.options(key="pay").enqueue(order)).result(10)

    assert await invoices(shop) == {"o7": 1, "o8": 1}
    assert {row["idempotency_key"] for row in await operations(shop)} == {"order:7:pay", "order:8:pay"}


@pytest.mark.parametrize("by", ["tx", "connection"])
async def test_a_statement_that_failed_and_was_caught_commits_nothing_and_is_no_success(
    app: App, shop: asyncpg.Connection, by: str
) -> None:
    """Postgres answers such a COMMIT with a rollback, and says no more than that."""

    @app.task(retry=Retry.never())
    async def pay(ctx: Context, payment: str) -> Any:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment)
            with contextlib.suppress(asyncpg.DivisionByZeroError):
                await (tx if by == "tx" else tx.connection).execute("SELECT 1 / 0")

    async with serving(app):
        error = await failure(await pay.enqueue("p1"))

    assert "current transaction is aborted" in error.error
    assert await invoices(shop) == {}


async def test_a_statement_that_failed_within_a_savepoint_takes_nothing_else_along(
    app: App, shop: asyncpg.Connection
) -> None:
    @app.task(retry=Retry.never())
    async def pay(ctx: Context, payment: str) -> Any:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment)
            with contextlib.suppress(asyncpg.DivisionByZeroError):
                async with tx.connection.transaction():
                    await tx.execute("SELECT 1 / 0")

    async with serving(app):
        await (await pay.enqueue("p1")).result(10)

    assert await invoices(shop) == {"p1": 1}


async def test_a_result_that_is_no_json_leaves_nothing_and_no_connection_behind(
    app: App, shop: asyncpg.Connection
) -> None:
    @app.task(retry=Retry.never())
    async def pay(ctx: Context, payment: str) -> Any:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment)
            tx.result = object()

    async with serving(app):
        for _ in range(8):  # more than there are connections
            assert (await failure(await pay.enqueue("p1"))).code == "serialization_error"

    assert await invoices(shop) == {}


@pytest.mark.parametrize("what", ["transaction", "operation"])
async def test_a_step_is_not_begun_after_burial(app: App, shop: asyncpg.Connection, what: str) -> None:
    """The handler was frozen between two steps, say, and its job has failed meanwhile."""
    seen: list[BaseException] = []
    buried = (
        "INSERT INTO streamworker.processed_operations "
        "(namespace, operation_type, idempotency_key, status, fence) VALUES ($1, 'pay', $2, 'buried', $3)"
    )

    @app.task(retry=Retry.never())
    async def pay(ctx: Context, payment: str, later: int) -> Any:
        async with ctx.transaction("reserve") as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment)
        await shop.execute(buried, app.settings.namespace, ctx.key, ctx.fence + later)
        try:
            if what == "operation":
                async with ctx.operation("charge"):
                    return "charged"
            async with ctx.transaction("pack") as tx:
                await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", "packed")
        except Exception as error:
            seen.append(error)
            raise

    async with serving(app):
        await failure(await pay.options(key="a").enqueue("p1", later=0))
        await (await pay.options(key="b").enqueue("p2", later=-1)).result(10)

    assert [type(error).__name__ for error in seen] == ["FencedOut"]
    steps = [row["step"] for row in await operations(shop) if row["idempotency_key"] == "a"]
    assert steps == ["reserve", ""]


async def test_what_a_handler_sets_for_its_session_does_not_meet_the_next(
    app: App, shop: asyncpg.Connection
) -> None:
    """Such as the tenant that row-level security goes by, or a lock that it forgets."""

    @app.task
    async def look(ctx: Context, tenant: str) -> Any:
        async with ctx.transaction() as tx:
            tx.result = await tx.fetchval("SELECT current_setting('shop.tenant', true)")
            if tenant:
                await tx.execute(f"SET shop.tenant = '{tenant}'; SELECT pg_advisory_lock(7)")

    async with serving(app):
        await (await look.enqueue("acme")).result(10)
        assert not await (await look.enqueue("")).result(10)

        async def free() -> bool:
            return bool(await shop.fetchval("SELECT pg_try_advisory_lock(7) AND pg_advisory_unlock(7)"))

        await wait_until_async(free, what="the lock is free")


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
async def test_a_block_that_ends_its_transaction_itself_is_no_success(
    app: App, shop: asyncpg.Connection, word: str
) -> None:
    @app.task(retry=Retry.never())
    async def pay(ctx: Context, payment: str) -> Any:
        async with ctx.transaction("step") as tx:
            await tx.execute(word)

    async with serving(app):
        failed = await failure(await pay.enqueue("p1"))
        assert (failed.code, failed.error_class) == ("configuration_error", "persistent")
