"""`ctx.operation`: Postgres remembers how far an effect elsewhere came, and no more than that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from streamworker import App, Context, PersistentError, Retry, TransientError
from streamworker.ops import dlq
from tests.effects.reading import operations
from tests.integration.serving import failure, serving
from tests.integration.test_examples import DOCS, blocks

SOON = Retry.schedule("10ms", "10ms", "10ms", unknown=["10ms", "10ms"])
pytestmark = pytest.mark.usefixtures("no_leaks")


class Provider:
    """Takes payments. One that `honours` keys takes each once."""

    def __init__(self, *, honours: bool, answers: list[bool]) -> None:
        self.charges: dict[str, int] = {}
        self.calls = 0
        self._honours = honours
        self._answers = iter(answers)  # whether each call is answered; all are carried out

    async def charge(self, key: str) -> str:
        self.calls += 1
        if not (self._honours and key in self.charges):
            self.charges[key] = self.charges.get(key, 0) + 1
        if not next(self._answers, True):
            raise TransientError("the answer was lost")
        return f"receipt of {key}"

    async def find(self, key: str) -> str | None:
        return f"receipt of {key}" if key in self.charges else None


def charging(app: App, provider: Provider) -> Any:
    @app.task(retry=SOON)
    async def charge(ctx: Context, amount: int) -> Any:
        async with ctx.operation("charge") as op:
            if op.uncertain and not provider._honours:
                op.result = await provider.find(op.key)
            if op.result is None:
                op.result = await provider.charge(op.key)
        if ctx.attempt == 1:
            raise TransientError("after the charge")
        return op.result

    return charge


@pytest.mark.parametrize("honours", [True, False])
async def test_an_operation_that_is_done_is_not_called_again(
    app: App, shop: asyncpg.Connection, honours: bool
) -> None:
    provider = Provider(honours=honours, answers=[])
    async with serving(app):
        job = await charging(app, provider).options(key="p1").enqueue(5)
        assert await job.result(10) == "receipt of p1:charge"

    assert (provider.calls, provider.charges) == (1, {"p1:charge": 1})
    (row,) = await operations(shop)
    assert (row["step"], row["status"], row["result"]) == ("charge", "succeeded", b'"receipt of p1:charge"')


@pytest.mark.parametrize("honours", [True, False])
async def test_of_a_call_whose_answer_was_lost_the_next_attempt_knows_that_nobody_knows(
    app: App, shop: asyncpg.Connection, honours: bool
) -> None:
    provider = Provider(honours=honours, answers=[False])
    async with serving(app):
        job = await charging(app, provider).options(key="p1").enqueue(5)
        assert await job.result(10) == "receipt of p1:charge"

    assert provider.charges == {"p1:charge": 1}
    assert provider.calls == (2 if honours else 1), "one that honours keys may be called again"


async def test_a_call_that_was_certainly_not_made_leaves_nothing(app: App, shop: asyncpg.Connection) -> None:
    uncertain: list[bool] = []

    @app.task(retry=SOON)
    async def charge(ctx: Context) -> Any:
        async with ctx.operation("charge") as op:
            uncertain.append(op.uncertain)
            if ctx.attempt == 1:
                op.did_not_happen()
                raise TransientError("refused before it began")
            op.result = 1
        return op.result

    async with serving(app):
        assert await (await charge.enqueue()).result(10) == 1

    assert uncertain == [False, False]


async def test_the_attempt_that_was_first_to_know_has_the_word(app: App, shop: asyncpg.Connection) -> None:
    @app.task
    async def charge(ctx: Context) -> Any:
        async with ctx.operation("charge") as op:
            await shop.execute(
                "UPDATE streamworker.processed_operations SET status = 'succeeded', result = '\"theirs\"'"
            )
            op.result = "ours"
        return op.result

    async with serving(app):
        assert await (await charge.enqueue()).result(10) == "theirs"


async def test_the_same_key_with_another_amount_is_a_conflict(app: App, shop: asyncpg.Connection) -> None:
    provider = Provider(honours=True, answers=[])
    charge = charging(app, provider)
    async with serving(app):
        await (await charge.options(key="k").enqueue(5)).result(10)
        await app.queue().caller.command("DEL", app.queue().keys.key("charge::k"))
        assert (await failure(await charge.options(key="k").enqueue(6))).code == "operation_conflict"

    assert provider.calls == 1


async def test_jobs_of_two_entities_with_one_key_are_two_to_a_provider_that_honours_keys(
    app: App, shop: asyncpg.Connection
) -> None:
    provider = Provider(honours=True, answers=[])

    @app.task(entity="order:{order}")
    async def charge(ctx: Context, order: int) -> str:
        async with ctx.operation("charge") as op:
            op.result = await provider.charge(op.key)
        return str(op.result)

    async with serving(app):
        for order in (7, 8):
            await (await charge.options(key="pay").enqueue(order)).result(10)

    assert provider.charges == {"order:7:pay:charge": 1, "order:8:pay:charge": 1}


async def test_an_edited_letter_begins_its_effect_anew_once_a_person_says_that_it_did_not_happen(
    app: App, shop: asyncpg.Connection
) -> None:
    calls: list[int] = []

    @app.task(retry=SOON)
    async def pay(ctx: Context, cents: int) -> Any:
        async with ctx.operation("charge") as op:
            calls.append(cents)
            if cents > 100:
                raise PersistentError("too much")  # and not a word of what became of the call
            op.result = cents
        return op.result

    async def replay(job_id: str, *, again: bool = False) -> None:
        assert (await dlq.replay(app.queue(), [job_id], actor="ann@ops", again=again)).moved == 1

    async with serving(app):
        job = await pay.options(key="order:7").enqueue(10_000)
        await failure(job)
        edit = await dlq.prepare(app.queue(), job.id)
        await dlq.edit(app.queue(), replace(edit, args={"cents": 100}), actor="ann@ops")
        await replay(job.id)
        failed = await failure(job)
        assert failed.code == "operation_conflict"
        assert "has begun its effect 'charge' for the key 'order:7' with other arguments" in failed.error
        assert "committed" not in failed.error
        assert calls == [10_000], "the old call may have been made"

        (statement,) = blocks(DOCS / "how-to" / "dead-letters.md", "sql")
        deleted = await shop.execute(statement.replace("'shop'", f"'{app.settings.namespace}'"))
        assert deleted == "DELETE 1"
        await replay(job.id, again=True)
        assert await job.result(10) == 100
    assert calls == [10_000, 100]


async def test_what_is_done_does_not_begin_anew(app: App, shop: asyncpg.Connection) -> None:
    """The statement for an effect that has begun takes none away that is done."""
    charge = charging(app, Provider(honours=True, answers=[]))
    async with serving(app):
        await (await charge.options(key="order:7").enqueue(5)).result(10)
    (statement,) = blocks(DOCS / "how-to" / "dead-letters.md", "sql")
    ours = statement.replace("'shop'", f"'{app.settings.namespace}'").replace("'pay'", "'charge'")

    assert await shop.execute(ours) == "DELETE 0"
    assert await shop.execute(ours.replace("AND status = 'started'", "")) == "DELETE 1"
