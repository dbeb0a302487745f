"""Producers without the code apply what the task declares (D17): lane, key, window, deadline, starts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest

from streamworker import App, Client, Context, Disposition, Lane, Options, Request, Route, SyncClient
from streamworker.core.errors import ConnectionLost, InvalidArgument
from streamworker.store import manifest
from streamworker.store.manifest import CronSpec, Declaration
from tests.integration.cli_desk import Desk
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.proxy import Proxy
from tests.servers import BenchServer, async_client
from tests.waiting import wait_until_async

ARGS = {"shipment_id": 7, "status": "sent"}


@pytest.fixture
def app(valkey: BenchServer, namespace: str) -> App:
    """An app whose task is protected in every way that a producer has to know of."""
    app = App("shop", redis_url=valkey.url, namespace=namespace, lease="1s")

    @app.task(
        lane="priority",
        key="shipment:{shipment_id}:{status}",
        deadline="90s",
        window="1h",
        max_starts=7,
    )
    async def update_shipment(ctx: Context, shipment_id: int, status: str) -> str:
        return f"shipment {shipment_id} is {status}"

    return app


@pytest.fixture
async def published(app: App) -> AsyncIterator[App]:
    """The app, after a worker of it has come and gone."""
    async with app:
        async with serving(app):
            pass
        yield app


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer
        if keys := observer.redis.keys(f"{observer.keys.tag}*"):
            observer.redis.unlink(*keys)


def as_declared(observer: Observer, job_id: str) -> None:
    """The job is as the task declares it, as if its code had enqueued it."""
    record = observer.record(job_id)
    enqueued_at = record.number("at") or 0
    assert record.lane == "priority"
    assert record.text("ky") == "update_shipment::shipment:7:sent"
    assert record.number("kw") == 3_600_000
    assert record.number("dl") == enqueued_at + 90_000
    assert record.number("ms") == 7


async def test_a_client_applies_what_the_task_declares(
    published: App, observer: Observer, valkey: BenchServer, namespace: str
) -> None:
    async with Client(valkey.url, app="shop", namespace=namespace) as client:
        job = await client.enqueue("update_shipment", ARGS)
        again = await client.enqueue("update_shipment", ARGS)
        (many,) = await client.enqueue_many([Request("update_shipment", ARGS)])

    as_declared(observer, job.id)
    assert (again.id, again.disposition) == (job.id, Disposition.DUPLICATE)
    assert (many.id, many.disposition) == (job.id, Disposition.DUPLICATE)
    by_the_code = await published.tasks["update_shipment"].enqueue(**ARGS)
    assert by_the_code.disposition is Disposition.DUPLICATE, "the key and the fingerprint are the code's own"


def test_a_synchronous_client_applies_what_the_task_declares(
    app: App, observer: Observer, valkey: BenchServer, namespace: str
) -> None:
    async def come_and_go() -> None:
        async with app, serving(app):
            pass

    asyncio.run(come_and_go())
    with SyncClient(valkey.url, app="shop", namespace=namespace) as client:
        job = client.enqueue("update_shipment", ARGS)
        (many,) = client.enqueue_many([Request("update_shipment", ARGS)])

    as_declared(observer, job.id)
    assert (many.id, many.disposition) == (job.id, Disposition.DUPLICATE)


async def test_the_command_line_applies_what_the_task_declares(
    published: App, observer: Observer, valkey: BenchServer, namespace: str
) -> None:
    with Desk(valkey.url, namespace) as desk:
        done = await asyncio.to_thread(desk.call, "enqueue", "update_shipment", json.dumps(ARGS))

    as_declared(observer, done.stdout.strip())


async def test_what_an_enqueue_says_wins(
    published: App, observer: Observer, valkey: BenchServer, namespace: str
) -> None:
    async with Client(valkey.url, app="shop", namespace=namespace) as client:
        job = await client.enqueue("update_shipment", ARGS, lane="normal", key="mine", deadline="5s")
        options = Options.of(key="other", lane="normal")
        (many,) = await client.enqueue_many([Request("update_shipment", ARGS, options)])

    record = observer.record(job.id)
    assert (record.lane, record.text("ky")) == ("normal", "update_shipment::mine")
    assert (record.number("dl") or 0) - (record.number("at") or 0) == 5000
    assert observer.record(many.id).text("ky") == "update_shipment::other"


async def test_a_missing_argument_of_the_key_is_refused_in_the_producer(
    published: App, observer: Observer, valkey: BenchServer, namespace: str
) -> None:
    async with Client(valkey.url, app="shop", namespace=namespace) as client:
        with pytest.raises(InvalidArgument, match="shipment_id"):
            await client.enqueue("update_shipment", {"status": "sent"})

    assert observer.redis.xlen(observer.keys.stream("priority")) == 0


async def test_a_task_that_nobody_declared_is_accepted_and_known_soon_after_a_worker_came(
    app: App, observer: Observer, valkey: BenchServer, namespace: str
) -> None:
    async with Client(valkey.url, app="shop", namespace=namespace) as client:
        early = await client.enqueue("update_shipment", ARGS)
        assert (observer.record(early.id).lane, observer.record(early.id).text("ky")) == ("normal", None)
        async with app, serving(app):
            await early.result(timeout=10)
        known_until = time.monotonic() + manifest.FRESH_UNKNOWN

        async with asyncio.timeout(10):
            while True:
                job = await client.enqueue("update_shipment", ARGS)
                if observer.record(job.id).lane == "priority":
                    break
                assert time.monotonic() < known_until + 1, "it is read again within about a second"
                await job.cancel()
                await asyncio.sleep(0.05)

    as_declared(observer, job.id)


async def test_a_declaration_is_read_once_for_all_and_not_again_within_a_minute(
    published: App, valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[list[str]] = []
    fields = manifest.fields

    def seen(tasks: Iterable[str]) -> list[str]:
        reads.append(fields(tasks))
        return reads[-1]

    monkeypatch.setattr(manifest, "fields", seen)
    async with Client(valkey.url, app="shop", namespace=namespace) as client:
        await asyncio.gather(
            *(client.enqueue("update_shipment", {"shipment_id": n, "status": "sent"}) for n in range(50))
        )
        for n in range(50, 60):
            await client.enqueue("update_shipment", {"shipment_id": n, "status": "sent"})

    assert reads == [["task:update_shipment", "routing"]]


async def test_a_new_declaration_is_applied_once_the_old_one_is_stale(
    published: App,
    observer: Observer,
    valkey: BenchServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manifest, "FRESH", 0.2)
    newer = App("shop", redis_url=valkey.url, namespace=namespace, lease="1s")

    @newer.task(name="update_shipment", lane="normal")
    async def update(ctx: Context, shipment_id: int, status: str) -> None: ...

    async with Client(valkey.url, app="shop", namespace=namespace) as client:
        job = await client.enqueue("update_shipment", ARGS)
        assert observer.record(job.id).lane == "priority"
        async with newer, serving(newer):
            pass
        queue = client._source.get()
        await wait_until_async(lambda: queue.unknown(["update_shipment"]), what="it is stale")

        job = await client.enqueue("update_shipment", ARGS)

    assert observer.record(job.id).lane == "normal"
    assert observer.record(job.id).text("ky") is None


async def test_an_outage_does_not_make_a_client_forget(
    published: App,
    observer: Observer,
    valkey: BenchServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manifest, "FRESH", 0.0)  # every enqueue has to read again
    with Proxy(valkey.port) as proxy:
        async with Client(proxy.url, app="shop", namespace=namespace) as client:
            await client.enqueue("update_shipment", ARGS, key="first")
            client._source.get().caller.patience = 0.2
            proxy.refuse()
            proxy.cut_all()
            with pytest.raises(ConnectionLost):
                await client.enqueue("update_shipment", ARGS)
            proxy.restore()
            client._source.get().caller.patience = 10.0

            job = await client.enqueue("update_shipment", ARGS)

    as_declared(observer, job.id)


async def test_a_client_that_may_not_read_the_manifest_enqueues_without(
    published: App, observer: Observer, valkey: BenchServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    user = f"only-{namespace}"
    rule = f"ACL SETUSER {user} on >secret ~{{{namespace}:0}}* +@all"
    admin: Any = async_client(valkey.url)
    async with admin:
        await admin.execute_command(*rule.split())
        try:
            url = f"redis://{user}:secret@127.0.0.1:{valkey.port}/0"
            async with Client(url, app="shop", namespace=namespace) as client:
                jobs = [await client.enqueue("update_shipment", ARGS) for _ in range(2)]
        finally:
            await admin.execute_command("ACL", "DELUSER", user)

    assert [observer.record(job.id).lane for job in jobs] == ["normal", "normal"]
    assert caplog.text.count("the manifest of tasks cannot be read") == 1


@pytest.mark.parametrize(
    "value",
    [b"", b"1", b"1 {", b"1 []", b'x {"lane":"a"}', b'1 {"lane":7}', b'1 {"lane":"a","key":"no field"}'],
)
def test_a_declaration_that_cannot_be_read_is_not_applied(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert manifest.read("pack", value) is None
    assert "pack" in caplog.text


def test_what_cannot_be_read_is_told_of_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside newer workers an older producer may meet it for hours; it read it, and said so, each second."""
    monkeypatch.setattr(manifest, "FRESH_UNKNOWN", 0.0)  # what is not there is looked for at once
    cache = manifest.Cache()

    for tasks in (["pack"], ["send"], ["made_up"]):
        cache.note(tasks, [None if tasks == ["made_up"] else b"1 {", b"1 {"])

    assert cache.stale(["pack", "send", "made_up"]) == ["made_up"]
    assert caplog.text.count("its declaration cannot be read") == 2
    assert caplog.text.count("the rules of the router cannot be read") == 1


def test_a_declaration_comes_back_as_it_was_published() -> None:
    declared = Declaration(
        lane="a",
        key="x:{n}",
        arguments=("n",),
        deadline_ms=1,
        window_ms=2,
        max_starts=3,
        timeout=4.5,
        retry="4 attempts",
        cron=CronSpec("* * * * *", "Europe/Berlin", "skip"),
    )

    found = manifest.read("pack", b"12 " + declared.encode()[:-1] + b',"newer":true}')

    assert found is not None
    assert found.number == 12
    assert found.template is not None
    assert found.template.render({"n": 7}) == "x:7"
    assert found.encode() == declared.encode()


# --- the router ------------------------------------------------------------------------------------------


@pytest.fixture
async def routed(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    """An app with rules, after a worker of it has come and gone."""
    app = App(
        "shop",
        redis_url=valkey.url,
        namespace=namespace,
        lease="1s",
        lanes={"priority": Lane(accept=["pay"]), "main": Lane(), "bulk": Lane(payload_limit=400_000)},
        routes=[
            Route("bulk", tenant="acme", name="acme"),
            Route("priority", task="pay", sla="gold"),
            Route("bulk", size_above=1000),
        ],
        sla={"gold": ["globex"]},
    )

    async def handler(ctx: Context, text: str = "") -> None: ...

    app.task(name="pay")(handler)
    app.task(name="report")(handler)
    async with app:
        async with serving(app):
            pass
        yield app


#: Task, arguments, options, and where the job waits.
ROUTED = [
    ("report", {}, {}, "main"),
    ("report", {}, {"lane": "priority"}, "main"),
    ("pay", {}, {"lane": "priority"}, "priority"),
    ("pay", {}, {"tenant": "globex"}, "priority"),
    ("report", {}, {"tenant": "globex"}, "main"),
    ("report", {}, {"tenant": "acme"}, "bulk"),
    ("report", {"text": "x" * 300_000}, {}, "bulk"),
    ("nobody knows", {}, {}, "main"),
    ("nobody knows", {}, {"lane": "priority"}, "main"),
]


@pytest.mark.parametrize(("task", "args", "options", "lane"), ROUTED)
async def test_producers_without_the_code_go_by_the_rules_of_the_app(
    routed: App,
    observer: Observer,
    valkey: BenchServer,
    namespace: str,
    task: str,
    args: dict[str, Any],
    options: dict[str, Any],
    lane: str,
) -> None:
    """D17."""
    name = task.replace(" ", "_")
    async with Client(valkey.url, app="shop", namespace=namespace) as client:
        jobs = [await client.enqueue(name, args, **options)]
        jobs += await client.enqueue_many([Request(name, args, Options.of(**options))])
    with SyncClient(valkey.url, app="shop", namespace=namespace) as sync:
        ids = [job.id for job in jobs] + [sync.enqueue(name, args, **options).id]
        ids += [job.id for job in sync.enqueue_many([Request(name, args, Options.of(**options))])]
    if name in routed.tasks:
        ids.append((await routed.enqueue(name, args, **options)).id)

    assert {observer.record(job_id).lane for job_id in ids} == {lane}


async def test_the_command_line_says_which_rule_decides(
    routed: App, valkey: BenchServer, namespace: str
) -> None:
    with Desk(valkey.url, namespace) as desk:

        async def ask(*arguments: str) -> str:
            return (await asyncio.to_thread(desk.call, "route", *arguments)).stdout

        plain = await ask("report", "--tenant", "acme")
        explained = await ask("pay", "--tenant", "globex", "--explain")
        refused = json.loads(await ask("report", "--lane", "priority", "--json"))
        unknown = await ask("nobody")

    assert plain.split() == ["bulk"]
    lines = [line.split() for line in explained.splitlines()]
    assert lines[0] == ["rule", "lane", "fits", "because"]
    assert ["acme", "bulk", "no", "the", "tenant", "is", "globex"] in lines
    assert ["route-2", "priority", "yes", "task", "pay;", "class", "gold"] in lines
    assert lines[-1] == ["priority"]
    assert (refused["lane"], refused["why"]) == ("main", "accept:priority")
    assert [(step["rule"], step["fits"]) for step in refused["steps"]] == [
        ("asked", True),
        ("accept", False),
        ("default", True),
    ]
    assert unknown.split() == ["main"]


async def test_rules_that_cannot_be_read_are_not_applied(
    routed: App, observer: Observer, valkey: BenchServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    observer.redis.hset(observer.keys.meta, "routing", '1 {"lanes": 5}')

    async with Client(valkey.url, app="shop", namespace=namespace) as client:
        job = await client.enqueue("report", tenant="acme")

    assert observer.record(job.id).lane == "main", "what the task declares still counts"
    assert "cannot be read" in caplog.text


async def test_a_worker_knows_by_which_change_its_tasks_stand_in_the_manifest(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """D17: only a newer declaration may judge a job's gates."""

    def shop(deadline: str) -> App:
        app = App("shop", redis_url=valkey.url, namespace=namespace, lease="1s")

        async def handler(ctx: Context) -> None: ...

        app.task(name="same")(handler)
        app.task(name="other", deadline=deadline)(handler)
        return app

    numbers = []
    for deadline in ("1m", "2m", "2m"):
        async with shop(deadline) as app, serving(app):
            numbers.append(dict(app.published))

    assert numbers == [{"same": 1, "other": 1}, {"same": 1, "other": 2}, {"same": 1, "other": 2}]


async def test_made_up_task_names_do_not_fill_a_producer(
    published: App, observer: Observer, valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as when the name comes out of a request: each was kept for good."""
    monkeypatch.setattr(manifest, "UNKNOWN", 10)
    async with Client(valkey.url, app="shop", namespace=namespace) as client:
        await client.enqueue("update_shipment", ARGS)
        await client.enqueue_many(Request(f"made_up_{n}", {}) for n in range(50))
        for n in range(50, 100):
            await client.enqueue(f"made_up_{n}")
        known = client._source.get()._manifest._known
        job = await client.enqueue("update_shipment", ARGS)

    assert len(known) <= 20
    assert "made_up_99" in known, "the newest are read once a second, as before"
    as_declared(observer, job.id)
