"""Servers, URLs and requests that cannot work: a clear error, nothing changed, no password shown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from streamworker import (
    App,
    Client,
    ConnectionLost,
    Context,
    InvalidArgument,
    PayloadTooLarge,
    Retry,
    SerializationError,
    ServerUnsuitable,
    Status,
    StreamworkerError,
    TransientError,
    UnknownTask,
    Worker,
)
from streamworker.store.connection import Link, SyncLink
from tests.integration.history import Observer
from tests.integration.serving import failure, serving
from tests.proxy import Proxy
from tests.servers import BenchServer, ServerFactory
from tests.waiting import wait_until_async

#: Needs quoting in a URL, so that a message could show it in either form.
PASSWORD = "s3cret word"
QUOTED = "s3cret%20word"


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    async with App("bad-input", redis_url=valkey.url, namespace=namespace, lease="1s") as app:
        yield app


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


async def refusal(url: str) -> StreamworkerError:
    """What a worker says instead of starting; one line, within 10 s."""
    async with App("refused", redis_url=url, lease="1s") as app:
        worker = Worker(app)
        with pytest.raises(StreamworkerError) as refused:
            async with asyncio.timeout(10):
                await worker.serve()
    assert not worker.started.is_set()
    assert "\n" not in str(refused.value)
    return refused.value


# --- servers that cannot keep the promise -----------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru"])
async def test_a_server_that_may_evict_jobs_is_refused(own_valkey: ServerFactory, policy: str) -> None:
    """R39: eviction removed the stream, or every dedup key: noeviction is required at start."""
    server = own_valkey(config={"maxmemory-policy": policy})

    refused = await refusal(server.url)

    assert isinstance(refused, ServerUnsuitable)
    assert policy in str(refused)
    assert "maxmemory-policy noeviction" in refused.remedy


class _ServerWithoutLua(BenchServer):
    """A server in which EVAL is gone, which the embedded server would refuse to start."""

    def __init__(self) -> None:
        super().__init__("valkey", config={"rename-command": 'EVAL ""'})

    def _answers(self, pid: int) -> bool:
        with contextlib.suppress(redis.ConnectionError), redis.Redis(port=self.port) as client:
            return bool(client.ping())
        return False


async def test_a_server_without_lua_is_refused() -> None:
    """R50: Valkey's Lua is a module and can be absent, hosted servers rename EVAL."""
    with _ServerWithoutLua() as server:
        refused = await refusal(server.url)

    assert isinstance(refused, ServerUnsuitable)
    assert "Lua" in str(refused)
    assert "EVAL" in str(refused)


async def test_a_user_who_may_not_run_scripts_is_told_so(own_valkey: ServerFactory) -> None:
    """R50, issue: a Redis without Lua gets a clear error, also where an ACL is the cause."""
    server = own_valkey(config={"user": "worker on >pw ~* &* +@all -eval -evalsha"})

    refused = await refusal(server.url.replace("redis://", "redis://worker:pw@"))

    assert isinstance(refused, ServerUnsuitable)
    assert "Lua" in str(refused)


async def test_a_server_older_than_7_0_is_refused(own_valkey: ServerFactory) -> None:
    """R49: by capability, since Valkey's version says nothing: FUNCTION came with 7.0."""
    server = own_valkey(config={"rename-command": 'FUNCTION ""'})

    refused = await refusal(server.url)

    assert isinstance(refused, ServerUnsuitable)
    assert "older than Redis 7.0" in str(refused)


async def test_nothing_listening_is_said_in_one_line() -> None:
    """Issue: bad input gets a clear error: a port without a server."""
    with Proxy(1) as proxy:
        proxy.refuse()

        refused = await refusal(proxy.url)

        assert isinstance(refused, ConnectionLost)
        assert str(proxy.port) in str(refused)


@pytest.mark.parametrize("url", ["http://127.0.0.1:6379", "127.0.0.1:6379", "redis://127.0.0.1:port/0"])
async def test_what_is_no_redis_url_is_said_in_one_line(url: str) -> None:
    """Issue: bad input gets a clear error: a URL that no connection can be made of."""
    refused = await refusal(url)

    assert isinstance(refused, ServerUnsuitable)
    assert "redis://" in refused.remedy


# --- passwords -------------------------------------------------------------------------------------------


async def test_a_wrong_password_is_refused_without_being_shown(
    own_valkey: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """R28, issue: a wrong password is never printed: not in messages, logs or the repr of anything."""
    caplog.set_level(logging.DEBUG)
    server = own_valkey(config={"requirepass": "right"})
    url = f"redis://:{QUOTED}@127.0.0.1:{server.port}/0"

    app, client = App("refused", redis_url=url), Client(url, app="refused")
    refused = await refusal(url)
    with pytest.raises(ServerUnsuitable) as of_client:
        await client.enqueue("any", {})
    await client.close()

    assert isinstance(refused, ServerUnsuitable)
    assert "password" in str(refused)
    shown = [str(refused), repr(refused), str(of_client.value), repr(app), repr(client), repr(app.settings)]
    shown += [repr(Link(url)), repr(SyncLink(url)), repr(app._source), caplog.text]
    assert [text for text in shown if "s3cret" in text] == []


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret/word@127.0.0.1:1/0",
        "redis://:s3cret#word@127.0.0.1:1/0",
        "redis://:s3cret?word@127.0.0.1:1/0",
        "redis://me:word@s3cret@127.0.0.1:port/0",
        "redis://127.0.0.1:port/0?password=s3cret",
        "unix://me:s3cret@/no/such/socket",
    ],
)
async def test_a_password_that_breaks_the_url_is_not_shown(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R28: an unquoted `/`, `#` or `?` ends the host part early, and is the commonest mistake of all."""
    caplog.set_level(logging.DEBUG)

    refused = await refusal(url)

    assert "s3cret" not in str(refused) + repr(refused) + caplog.text


async def test_the_right_password_stays_secret_while_things_fail(
    own_valkey: ServerFactory, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """R28: no log line or exception of worker or client has the password, whatever goes wrong."""
    caplog.set_level(logging.DEBUG)
    server = own_valkey(config={"requirepass": f'"{PASSWORD}"'}, appendonly=True)
    problems: list[str] = []

    with Proxy(server.port) as proxy:
        url = f"redis://:{QUOTED}@127.0.0.1:{proxy.port}/0"
        app = App("secret", redis_url=url, namespace=namespace, lease="500ms")

        @app.task
        async def fail(ctx: Context) -> None:
            raise TransientError("as it may")

        async with app, serving(app, grace=0.5):
            job = await fail.enqueue()
            await wait_until_async(lambda: "attempt 1 failed" in caplog.text, what="the job failed")
            with pytest.raises(TimeoutError) as waited:
                await job.result(0.1)
            problems.append(repr(waited.value))
            proxy.cut_all()
            await wait_until_async(lambda: "blocking read failed" in caplog.text, what="the reader lost it")
            server.kill()
            await wait_until_async(lambda: "no session with Redis yet" in caplog.text, what="it is down")
            await wait_until_async(lambda: "heartbeat failed" in caplog.text, what="the heartbeat fails")
            server.restart()
            with contextlib.suppress(StreamworkerError):
                await app.queue().caller.command("NO.SUCH.COMMAND")
            app.queue().caller.patience = 0.2
            proxy.refuse()
            proxy.cut_all()
            with pytest.raises(ConnectionError) as lost:
                await fail.enqueue()
            problems.append(repr(lost.value))
            proxy.restore()

    assert "s3cret" not in "".join(problems)
    assert "s3cret" not in caplog.text


async def test_a_database_that_the_server_has_not_is_refused(valkey: BenchServer) -> None:
    """Trying again would not help, nor would another Redis."""
    refused = await refusal(f"redis://127.0.0.1:{valkey.port}/99")

    assert isinstance(refused, ServerUnsuitable)
    assert "no database of that number" in str(refused)


# --- requests --------------------------------------------------------------------------------------------


async def test_an_unknown_task_is_refused_by_the_app_with_the_nearest_name(
    app: App, observer: Observer
) -> None:
    """Issue: an unknown task name at enqueue by `App` is refused and changes nothing."""

    @app.task
    async def update_shipment(ctx: Context) -> None: ...

    with pytest.raises(UnknownTask, match="update_shipment"):
        await app.enqueue("update_shipmnet", {})

    assert observer.redis.keys(f"{observer.keys.tag}*") == []


async def test_what_cannot_travel_is_refused_before_redis_hears_of_it(app: App, observer: Observer) -> None:
    """B47, issue: bad values are refused in the producer, with the path of the value."""
    circular: list[Any] = []
    circular.append(circular)

    @app.task
    async def take(ctx: Context, value: Any) -> None: ...

    for value in ({1, 2}, b"bytes", float("nan"), float("inf"), 1 << 64, "\ud83d", object(), circular):
        with pytest.raises(SerializationError, match=r"value"):
            await take.enqueue({"nested": [value]})
    with pytest.raises(PayloadTooLarge):
        await take.enqueue("x" * 300_000)
    with pytest.raises(InvalidArgument):
        await take.options(lane="no-such-lane").enqueue(1)

    assert observer.redis.keys(f"{observer.keys.tag}*") == []


async def test_a_claim_for_a_lane_that_is_not_ours_is_refused_at_once(app: App) -> None:
    """STYLE, Errors: messages name what is there."""
    with pytest.raises(InvalidArgument, match="priority, normal"):
        Worker(app, lanes=["urgent"])


# --- bugs ------------------------------------------------------------------------------------------------


async def test_a_bug_is_logged_with_the_line_that_raised_and_without_its_text(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    """An error's text may quote arguments, which are in no log."""

    @app.task(retry=Retry.never())
    async def in_the_loop(ctx: Context, card: str) -> str:
        prices: dict[str, str] = {}
        return prices[card]

    @app.task(retry=Retry.never())
    def in_a_thread(ctx: Context, card: str) -> int:
        return int(card)

    @app.task(retry=Retry.never())
    async def declared(ctx: Context, card: str) -> None:
        raise TransientError("no answer")

    async with serving(app):
        for task in (in_the_loop, in_a_thread, declared):
            failed = await failure(await task.enqueue("4111-1111"))
            *_, place = failed.error.splitlines()
            assert place.startswith(f"  at {__file__}:") == (task is not declared), "where a bug is, it says"
            assert place.endswith(f"in {task.name}") == (task is not declared)

    said = {record.getMessage() for record in caplog.records if " raised " in record.getMessage()}
    assert {line.partition("\n")[0].rpartition(" ")[2] for line in said} == {"KeyError", "ValueError"}
    for line in said:
        assert line.split("\n")[1].startswith(f'  File "{__file__}", line '), "the handler comes first"
    assert "4111" not in caplog.text


# --- tasks that a worker does not know -------------------------------------------------------------------


async def test_an_unknown_task_is_handed_back_and_after_an_hour_is_a_dead_letter(
    app: App, observer: Observer, valkey: BenchServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D17, issue: accepted by Client, handed back uncharged (B42); after an hour `unknown_task`."""
    async with Client(valkey.url, app="worker-tests", namespace=namespace) as client, serving(app):
        job = await client.enqueue("tomorrows_task", {"x": 1})
        await wait_until_async(
            lambda: observer.record(job.id).number("du") is not None, what="it is handed back with a delay"
        )
        handed_back = observer.record(job.id)
        assert (handed_back.status, handed_back.attempt, handed_back.starts) == (Status.QUEUED, 0, 0)
        assert observer.transitions(job.id)[-1].reason == "unknown_task"

        handed_back.fields["ut"] = str((handed_back.number("ut") or 0) - 3_600_000)  # an hour ago
        observer.redis.set(observer.keys.job(job.id), handed_back.line())
        failed = await failure(job)

    assert (failed.code, failed.error_class) == ("unknown_task", "persistent")
    assert "tomorrows_task" in failed.error
    assert caplog.text.count("no task is named 'tomorrows_task'") == 1, "its worker says so, once"
    assert observer.dead_letters()[job.id]["code"] == "unknown_task"
    assert observer.leftovers() == []


async def test_bad_arguments_are_a_dead_letter_at_the_first_attempt(
    app: App, observer: Observer, valkey: BenchServer, namespace: str
) -> None:
    """DESIGN 4, issue: bad arguments: persistent, dead letter `bad_arguments`, no retries, no user code."""
    ran: list[int] = []

    @app.task
    async def ship(ctx: Context, shipment_id: int) -> None:
        ran.append(shipment_id)

    async with Client(valkey.url, app="worker-tests", namespace=namespace) as client, serving(app):
        missing = await client.enqueue("ship", {})
        unknown = await client.enqueue("ship", {"shipment_id": 7, "carrier": "dhl"})
        ends = [await failure(missing), await failure(unknown)]

    assert [end.code for end in ends] == ["bad_arguments", "bad_arguments"]
    assert "shipment_id" in ends[0].error
    assert "carrier" in ends[1].error
    assert ran == []
    assert [observer.record(job.id).attempt for job in (missing, unknown)] == [1, 1]
    assert {letter["attempt"] for letter in observer.dead_letters().values()} == {"1"}
