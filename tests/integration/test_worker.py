"""What a worker makes of what handlers do, against a real server."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamworker import (
    App,
    Cancel,
    Context,
    Job,
    PersistentError,
    Retry,
    RetryAfter,
    Skip,
    Snooze,
    Status,
    TransientError,
)
from streamworker.store.events import decode
from tests.integration.history import Journal, Observer
from tests.integration.serving import ThreadWorker, failure, serving
from tests.servers import BenchServer
from tests.waiting import Stopwatch, wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")

QUICK = Retry.schedule("50ms", "50ms", "50ms", unknown=["50ms", "50ms"])


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    """An app on the shared Valkey, with a lease of 1 s."""
    async with App("worker-tests", redis_url=valkey.url, namespace=namespace, lease="1s") as app:
        yield app


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


# --- the life of a job -----------------------------------------------------------------------------------


async def test_a_job_runs_and_its_result_arrives(app: App, observer: Observer) -> None:
    """DESIGN 3: queued, claimed, processing, succeeded, with consecutive versions."""

    @app.task
    async def add(ctx: Context, a: int, b: int = 0) -> int:
        return a + b

    async with serving(app):
        job = await add.enqueue(1, b=2)

        assert await job.result(5) == 3

    assert observer.path(job.id) == ["queued", "claimed", "processing", "succeeded"]
    assert [edge.version for edge in observer.transitions(job.id)] == [1, 2, 3, 4]
    assert observer.leftovers() == []


async def test_a_handler_learns_what_it_runs(app: App) -> None:
    """DESIGN 12: the stable names of the context."""
    seen: list[Context] = []

    @app.task(lane="priority")
    async def look(ctx: Context) -> None:
        seen.append(ctx)

    async with serving(app):
        keyed = await look.options(key="order:7", tenant="acme", correlation_id="trace-1").enqueue()
        plain = await look.enqueue()
        await asyncio.gather(keyed.result(5), plain.result(5))

    by_id = {ctx.job_id: ctx for ctx in seen}
    with_key, without = by_id[keyed.id], by_id[plain.id]
    assert (with_key.key, with_key.tenant, with_key.correlation_id) == ("order:7", "acme", "trace-1")
    assert (without.key, without.tenant, without.correlation_id) == (plain.id, None, plain.id)
    assert (with_key.task, with_key.lane, with_key.attempt) == ("look", "priority", 1)
    assert with_key.fence != without.fence


async def test_a_job_that_takes_no_time_goes_through_both_edges_in_its_settle(
    app: App, observer: Observer
) -> None:
    """D20: the start mark is no round trip of its own."""

    @app.task
    async def nothing(ctx: Context) -> None:
        return None

    async with serving(app):
        await (await nothing.enqueue()).result(5)

    entries = [list(decode(fields)) for _, fields in observer.redis.xrange(observer.keys.events)]
    (settled,) = [entry for entry in entries if any(edge.to_status is Status.SUCCEEDED for edge in entry)]
    assert [edge.to_status for edge in settled] == [Status.PROCESSING, Status.SUCCEEDED]


async def test_a_job_that_goes_on_is_soon_seen_to_be_processing(app: App, observer: Observer) -> None:
    """D20: what runs longer than 20 ms is marked, and the mark is out within 100 ms."""
    began: list[float] = []
    may_end = asyncio.Event()

    @app.task
    async def long(ctx: Context) -> None:
        began.append(time.time())
        await may_end.wait()

    async with serving(app):
        watch = Stopwatch()
        job = await long.enqueue()
        await wait_until_async(
            lambda: observer.record(job.id).status is Status.PROCESSING, what="the start is marked"
        )
        # 20 ms until it is due, 50 until the sweep, the rest for the call on a busy machine.
        assert time.time() - began[0] - watch.waited < 0.25
        may_end.set()
        await job.result(5)

    assert observer.path(job.id) == ["queued", "claimed", "processing", "succeeded"]
    marked = observer.transitions(job.id)[2]
    assert abs(marked.at_ms / 1000 - began[0]) < 0.1  # the handler's own start, not the mark's arrival


async def test_plain_functions_run_in_threads_up_to_the_concurrency(app: App) -> None:
    """HOTPATH 2: as many threads as slots, so that no slot waits for another's thread."""
    meeting = threading.Barrier(4, timeout=5)

    @app.task(retry=Retry.never())
    def meet(ctx: Context) -> str:
        meeting.wait()  # breaks, and fails the job, unless all four are here
        return threading.current_thread().name

    async with serving(app, concurrency=4, lanes=["normal"]):
        jobs = await app.enqueue_many(meet.call() for _ in range(4))
        names = await asyncio.gather(*(job.result(8) for job in jobs))

    assert len(set(names)) == 4
    assert all(name != threading.main_thread().name for name in names)


async def test_the_lifespan_opens_before_the_first_job_and_closes_after_the_last(
    valkey: BenchServer, namespace: str
) -> None:
    """DESIGN 10: the app is the one composition root; what its lifespan yields reaches ctx.state."""
    story: list[str] = []

    @asynccontextmanager
    async def lifespan(_: App) -> AsyncIterator[dict[str, str]]:
        story.append("open")
        yield {"pool": "of connections"}
        story.append("closed")

    app = App("lifespan", redis_url=valkey.url, namespace=namespace, lifespan=lifespan)

    @app.task
    async def use(ctx: Context) -> str:
        story.append("job")
        return str(ctx.state["pool"])

    async with app, serving(app):
        assert await (await use.enqueue()).result(5) == "of connections"

    assert story == ["open", "job", "closed"]


async def test_what_a_handler_enqueues_inherits_its_correlation_id(app: App) -> None:
    """DESIGN 11: correlation_id is inherited from the enqueuing job, in coroutines and in threads."""
    seen: dict[str, str] = {}
    children: list[Any] = []

    @app.task
    async def child(ctx: Context, of: str) -> None:
        seen[of] = ctx.correlation_id

    @app.task
    async def parent(ctx: Context) -> None:
        children.append(await child.enqueue("parent"))

    @app.task
    def threaded(ctx: Context) -> str:
        return child.call("threaded").job.envelope.decode()

    async with serving(app):
        first = await parent.options(correlation_id="request-9").enqueue()
        second = await threaded.options(correlation_id="request-10").enqueue()
        await first.result(5)
        await children[0].result(5)
        envelope = await second.result(5)
        alone = await child.enqueue("nobody")
        await alone.result(5)

    assert seen == {"parent": "request-9", "nobody": alone.id}
    assert '"request-10"' in envelope


# --- what handlers return and raise ----------------------------------------------------------------------


async def test_a_transient_error_is_retried_and_each_attempt_is_charged(app: App, observer: Observer) -> None:
    """DESIGN 4: transient errors are retried by the task's policy, one counter for all."""
    attempts: list[int] = []

    @app.task(retry=QUICK)
    async def flaky(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise TransientError("not yet")
        return f"at attempt {ctx.attempt}"

    async with serving(app):
        job = await flaky.enqueue()
        assert await job.result(5) == "at attempt 3"

    assert attempts == [1, 2, 3]
    retries = [edge for edge in observer.transitions(job.id) if edge.to_status is Status.RETRY_SCHEDULED]
    assert [(edge.facts["class"], edge.reason) for edge in retries] == [("transient", "error")] * 2
    assert observer.leftovers() == []


async def test_a_job_that_never_works_ends_as_a_dead_letter_after_its_last_attempt(
    app: App, observer: Observer
) -> None:
    """DESIGN 4: exactly as many attempts as the policy says, then one dead letter (B44)."""
    starts: list[int] = []

    @app.task(retry=Retry.schedule("20ms", "20ms"))
    async def hopeless(ctx: Context) -> None:
        starts.append(ctx.attempt)
        raise TransientError("never")

    async with serving(app):
        job = await hopeless.enqueue()
        failed = await failure(job)

    assert starts == [1, 2, 3]
    assert (failed.code, failed.error_class) == ("transient", "transient")
    letter = observer.dead_letters()[job.id]
    assert (letter["code"], letter["attempt"], letter["task"]) == ("transient", "3", "hopeless")
    assert observer.leftovers() == []


async def test_a_persistent_error_is_never_retried(app: App, observer: Observer) -> None:
    """DESIGN 4: persistent: failed_terminal at once."""

    @app.task
    async def refuse(ctx: Context) -> None:
        raise PersistentError("no such customer", code="no_customer")

    async with serving(app):
        job = await refuse.enqueue()
        failed = await failure(job)

    assert (failed.code, failed.error_class) == ("no_customer", "persistent")
    assert "no such customer" in failed.error
    assert observer.record(job.id).attempt == 1
    assert list(observer.dead_letters()) == [job.id]


async def test_skip_is_a_success_that_says_why(app: App, observer: Observer) -> None:
    """DESIGN 4: `return Skip("why")` is a valid no-op success."""

    @app.task
    async def maybe(ctx: Context) -> Skip:
        return Skip("nothing changed")

    async with serving(app):
        job: Job[Any] = await maybe.enqueue()
        assert await job.result(5) == {"skipped": "nothing changed"}

    assert observer.transitions(job.id)[-1].reason == "skipped"


async def test_a_snooze_comes_back_later_without_being_charged(app: App, observer: Observer) -> None:
    """DESIGN 4: `return Snooze(seconds)` is not charged; 3: starts count it."""
    seen: list[tuple[int, float]] = []

    @app.task
    async def wait(ctx: Context) -> Snooze | str:
        seen.append((ctx.attempt, time.monotonic()))
        return "done" if len(seen) > 1 else Snooze(0.2)

    async with serving(app):
        job = await wait.enqueue()
        assert await job.result(5) == "done"

    assert [attempt for attempt, _ in seen] == [1, 1]
    assert seen[1][1] - seen[0][1] >= 0.2
    assert (observer.record(job.id).attempt, observer.record(job.id).starts) == (1, 2)
    assert observer.leftovers() == []


async def test_retry_after_is_charged_and_never_early(app: App, observer: Observer) -> None:
    """DESIGN 4: `raise RetryAfter(seconds)`: server-directed, charged."""
    seen: list[tuple[int, float]] = []

    @app.task
    async def limited(ctx: Context) -> str:
        seen.append((ctx.attempt, time.monotonic()))
        if ctx.attempt == 1:
            raise RetryAfter(0.3)
        return "through"

    async with serving(app):
        job = await limited.enqueue()
        assert await job.result(5) == "through"

    assert [attempt for attempt, _ in seen] == [1, 2]
    assert seen[1][1] - seen[0][1] >= 0.3
    (retry,) = [edge for edge in observer.transitions(job.id) if edge.to_status is Status.RETRY_SCHEDULED]
    assert (retry.reason, retry.facts["code"]) == ("server_directed", "retry_after")


async def test_a_handler_can_cancel_its_job(
    app: App, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN 4: `raise Cancel("why")` ends as cancelled, which is no dead letter."""

    @app.task
    async def obsolete(ctx: Context) -> None:
        raise Cancel("the order is gone")

    async with serving(app):
        job = await obsolete.enqueue()
        failed = await failure(job)

    assert failed.code == "cancelled"
    assert "the order is gone" in failed.error
    assert observer.dead_letters() == {}
    assert [each.levelname for each in caplog.records if job.id in each.getMessage()] in ([], ["INFO"])
    assert "failed" not in caplog.text


async def test_a_result_that_json_cannot_hold_is_a_persistent_error(app: App, observer: Observer) -> None:
    """Issue: a handler that returns what JSON can't hold fails for good, with the path of the value."""

    @app.task
    async def returns_a_set(ctx: Context) -> Any:
        return {"tags": {1, 2}}

    @app.task
    async def returns_too_much(ctx: Context) -> str:
        return "x" * 300_000

    async with serving(app):
        job, large = await returns_a_set.enqueue(), await returns_too_much.enqueue()
        failed, too_large = await failure(job), await failure(large)

    assert (failed.error_class, too_large.error_class) == ("persistent", "persistent")
    assert "tags" in failed.error
    assert observer.dead_letters().keys() == {job.id, large.id}
    assert observer.record(job.id).attempt == 1


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_handler_that_wants_to_end_the_process_fails_its_job_only(app: App, kind: str) -> None:
    """HOTPATH 6: the job wrapper is total; sys.exit() in a handler does not end the worker."""

    @app.task(retry=Retry.never())
    async def leave(ctx: Context) -> None:
        sys.exit(3)

    @app.task(retry=Retry.never())
    def leave_thread(ctx: Context) -> None:
        sys.exit(3)

    @app.task
    async def after(ctx: Context) -> str:
        return "still here"

    async with serving(app, concurrency=1):
        failed = await failure(await (leave if kind == "async" else leave_thread).enqueue())

        assert await (await after.enqueue()).result(5) == "still here"

    assert (failed.code, failed.error_class) == ("system_exit", "unknown")


async def test_a_plain_function_that_raises_stop_iteration_fails_like_any_other(app: App) -> None:
    """HOTPATH 6: the wrapper is total; `next()` of an empty iterator must not leave the job hanging."""

    @app.task(retry=Retry.never(), timeout="5s")
    def first_of_none(ctx: Context) -> int:
        return next(iter(list[int]()))

    async with serving(app):
        failed = await failure(await first_of_none.enqueue())

    assert failed.error_class == "unknown"
    assert "StopIteration" in failed.error


async def test_a_handler_that_cancels_itself_fails_like_any_other(app: App) -> None:
    """R20: a CancelledError that nobody asked for is the handler's error, not a hand-back without end."""

    @app.task(retry=Retry.never())
    async def suicidal(ctx: Context) -> None:
        raise asyncio.CancelledError

    async with serving(app):
        failed = await failure(await suicidal.enqueue())

    assert failed.error_class == "unknown"


# --- the loop --------------------------------------------------------------------------------------------


async def test_a_handler_that_blocks_the_loop_for_3_leases_loses_nothing(
    valkey: BenchServer, namespace: str, tmp_path: Any, observer: Observer
) -> None:
    """R22 (B13): the heartbeat has a thread of its own; nobody else takes the job, and it runs once."""
    journal = Journal(tmp_path / "journal")

    def make() -> App:
        app = App("blocking", redis_url=valkey.url, namespace=namespace, lease="500ms")

        @app.task
        async def block(ctx: Context) -> None:
            journal.start(ctx)
            time.sleep(1.5)  # noqa: ASYNC251 - three leases: the fault that is under test
            journal.end(ctx)

        return app

    # The one worker's loop is blocked; the other serves another lane, sweeps, and would take what is dead.
    with ThreadWorker(make(), concurrency=2):
        async with make() as app, serving(app, lanes=["priority"]):
            await wait_until_async(observer.sweeps, what="sweeps take the dead")
            job = await app.tasks["block"].enqueue()
            await job.result(8)

    assert [mark.job_id for mark in journal.starts()] == [job.id]
    assert observer.path(job.id) == ["queued", "claimed", "processing", "succeeded"]
