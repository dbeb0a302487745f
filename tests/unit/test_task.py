"""Tasks as they are declared and called, without a server."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson
import pytest

from streamworker import (
    App,
    BadArguments,
    ConfigurationError,
    Context,
    DurationError,
    InvalidArgument,
    PayloadTooLarge,
    Retry,
    SerializationError,
)
from streamworker.core.job import Envelope
from streamworker.core.lane import Pressure
from streamworker.core.signature import Signature
from streamworker.request import current_correlation_id
from streamworker.settings import Settings
from streamworker.store.routing import NO_RULES
from streamworker.store.scripts import KEY_WINDOW_MS, NewJob
from streamworker.task import Task


@pytest.fixture
def app() -> App:
    return App("tasks")


def context(**facts: Any) -> Context:
    given = {
        "job_id": "j",
        "task": "t",
        "key": "j",
        "attempt": 1,
        "fence": 7,
        "lane": "normal",
        "tenant": None,
        "correlation_id": "c",
    }
    return Context(**{**given, **facts})


def envelope(job: NewJob) -> Envelope:
    return Envelope.decode(job.envelope)


# --- signatures ------------------------------------------------------------------------------------------


def test_arguments_travel_by_name_without_defaults(app: App) -> None:
    """D11: bound names, defaults not applied: a new default reaches what is queued."""

    @app.task
    async def send(ctx: Context, to: str, subject: str = "hello", *, urgent: bool = False) -> None: ...

    assert envelope(send.call("ann").job).args == {"to": "ann"}
    assert envelope(send.call("ann", "hi", urgent=True).job).args == {
        "to": "ann",
        "subject": "hi",
        "urgent": True,
    }


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {}, "missing: a"),
        ((), {"ordr": 7, "b": 1}, "missing: a; unknown: ordr; it takes a, b"),
        ((1,), {"a": 2}, "'a' was given twice"),
        ((1,), {"c": 2}, "unknown: c; it takes a, b"),
        ((1, 2, 3), {}, "takes"),
        ((1, 2), {}, ""),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_the_producer(
    app: App, args: tuple[Any, ...], kwargs: dict[str, Any], named: str
) -> None:
    """Issue, bad input: the message names the task and what is wrong, before anything is sent."""

    @app.task
    async def take(ctx: Context, a: int, *, b: int = 0) -> None: ...

    with pytest.raises(BadArguments) as refused:
        take.call(*args, **kwargs)

    assert "task take" in str(refused.value)
    assert named in str(refused.value)


def test_an_open_handler_takes_any_further_name_but_its_own_context(app: App) -> None:
    """Bad arguments are found before the handler is called, or they would count as its unknown errors."""

    async def collect(ctx: Context, first: int, **rest: int) -> None: ...
    async def positional(ctx: Context, /, first: int, **rest: int) -> None: ...

    Signature.of("collect", collect).check({"first": 1, "x": 2})
    with pytest.raises(BadArguments, match="ctx"):
        Signature.of("collect", collect).check({"first": 1, "ctx": 2})
    assert envelope(app.task(positional).call(1, ctx=2).job).args == {"first": 1, "ctx": 2}


def test_handlers_that_cannot_be_called_by_name_are_refused_at_once(app: App) -> None:
    """STYLE, Errors: at registration, with what to do."""

    def no_context() -> None: ...
    def only_keywords(*, ctx: Context) -> None: ...
    def any_number(ctx: Context, *values: int) -> None: ...
    def by_position(ctx: Context, a: int, b: int, /) -> None: ...
    def no_context_but_data(number: int, other: int) -> None: ...
    def real_types(text, other): ...  # type: ignore[no-untyped-def]
    def a_method(self: object, ctx: Context) -> None: ...

    real_types.__annotations__["text"] = str
    for handler in (
        no_context,
        only_keywords,
        any_number,
        by_position,
        no_context_but_data,
        real_types,
        a_method,
    ):
        with pytest.raises(ConfigurationError, match=handler.__name__):
            Signature.of(handler.__name__, handler)


def test_bad_values_are_refused_with_their_path(app: App) -> None:
    """B47: before Redis hears of it."""

    @app.task
    async def take(ctx: Context, value: Any) -> None: ...

    with pytest.raises(SerializationError) as refused:
        take.call({"orders": [{"ids": {1, 2}}]})
    assert "orders" in refused.value.path
    assert "ids" in refused.value.path
    with pytest.raises(PayloadTooLarge) as large:
        take.call("x" * 300_000)
    assert large.value.limit == 256 * 1024


# --- policies --------------------------------------------------------------------------------------------


def test_a_task_that_declares_nothing_is_complete(app: App) -> None:
    """DESIGN 11: what is not declared costs nothing, and has a safe default."""

    @app.task
    async def plain(ctx: Context) -> None: ...

    policy = plain.policy
    assert (policy.lane, policy.timeout, policy.deadline_ms, policy.max_starts) == ("normal", 300.0, 0, 20)
    assert (policy.retry, policy.window_ms, policy.key) == (Retry(), KEY_WINDOW_MS, None)
    assert (plain.name, plain.is_async, repr(plain)) == ("plain", True, "<Task plain>")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"deadline": -1}, "deadline"),
        ({"max_starts": 0}, "max_starts"),
        ({"max_starts": True}, "max_starts"),
        ({"window": "1m"}, "window"),
        ({"key": "order:{order}"}, "order"),
        ({"key": "constant"}, "constant"),
        ({"transient": ("ValueError",)}, "transient"),
        ({"persistent": (ValueError(),)}, "persistent"),
        ({"lane": "urgent"}, "priority, normal"),
        ({"name": "no spaces"}, "no spaces"),
        ({"retry": 3}, 'retry= is a Retry, such as Retry.fixed(3, "30s"), not 3'),
        ({"key": 7}, 'such as "order:{order_id}", not 7'),
        ({"transient": ValueError}, "such as (LookupError,), not <class 'ValueError'>"),
        ({"persistent": "ValueError"}, "such as (LookupError,), not 'ValueError'"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_when_it_is_declared(
    app: App, options: dict[str, Any], named: str
) -> None:
    """D11, STYLE: at registration, and the message names the setting."""

    async def handler(ctx: Context, n: int) -> None: ...

    with pytest.raises((ConfigurationError, DurationError, InvalidArgument)) as refused:
        app.task(**options)(handler)

    assert named in str(refused.value)
    assert app.tasks == {}


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("timout", "did you mean timeout=?"),
        ("max_retries", "did you mean retry=?"),
        ("queue", "did you mean lane=?"),
        ("rate_limit", "did you mean limits=?"),
        ("acks_late", "there are: name, lane, retry, "),
    ],
)
def test_an_option_that_is_none_names_the_one_that_was_meant(app: App, option: str, meant: str) -> None:
    declares: list[Any] = [app.task, partial(app.cron, "* * * * *")]
    for declare in declares:
        with pytest.raises(ConfigurationError, match=re.escape(f"no option {option}=; {meant}")):
            declare(**{option: 3})


def test_a_window_may_be_as_long_as_the_retries_and_no_shorter(app: App) -> None:
    """D11: a window shorter than the retry span is refused, or a duplicate could run beside a retry."""
    retry = Retry.fixed(3, "1m", jitter=0, unknown=[])

    async def handler(ctx: Context) -> None: ...

    assert app.task(name="fits", retry=retry, window="2m")(handler).policy.window_ms == 120_000
    with pytest.raises(ConfigurationError, match="window"):
        app.task(name="short", retry=retry, window=119.9)(handler)


# --- calls -----------------------------------------------------------------------------------------------


def test_a_call_carries_what_its_task_declares(app: App) -> None:
    """DESIGN 11: lane, key template, window, deadline, starts; options win over them."""

    @app.task(lane="priority", key="order:{order}", window="1d", deadline="1h", max_starts=7)
    async def pay(ctx: Context, order: int) -> None: ...

    call, other = pay.call(7), pay.options(key="by hand", lane="normal", deadline=60).call(7)

    assert (call.key, call.job.lane, call.job.deadline_ms) == ("order:7", "priority", 3_600_000)
    assert (call.job.window_ms, call.job.max_starts) == (86_400_000, 7)
    assert envelope(call.job).key == "order:7"
    assert (other.key, other.job.lane, other.job.deadline_ms) == ("by hand", "normal", 60_000)
    assert call.job.fingerprint == other.job.fingerprint != ""
    assert call.job.key_id != other.job.key_id


def test_a_fingerprint_does_not_depend_on_how_arguments_were_passed(app: App) -> None:
    """D11: bound names, sorted keys."""

    @app.task(key="{a}")
    async def take(ctx: Context, a: int, b: dict[str, int]) -> None: ...

    same = [take.call(1, {"x": 1, "y": 2}), take.call(b={"y": 2, "x": 1}, a=1)]

    assert len({call.job.fingerprint for call in same}) == 1
    assert take.call(1, {"x": 2}).job.fingerprint != same[0].job.fingerprint


def test_options_that_cannot_work_are_refused(app: App) -> None:
    """STYLE, Errors: a job that would expire before it could run is a mistake of the caller."""

    @app.task
    async def plain(ctx: Context) -> None: ...

    cases: list[dict[str, Any]] = [
        {"delay": -1},
        {"delay": "soon"},
        {"deadline": 0},
        {"deadline": 5, "delay": 5},
        {"key": ""},
        {"key": "x" * 600},
        {"lane": "No Lane"},
        {"tenant": "a\nb"},
        {"correlation_id": "x" * 200},
    ]
    for options in cases:
        with pytest.raises(ValueError, match=next(iter(options)).split("_")[0]):
            plain.options(**options)


def test_a_delay_beyond_the_deadline_that_the_task_declares_is_refused(app: App) -> None:
    """Each of its jobs would expire before it could run, hours later."""

    @app.task(deadline="1h")
    async def remind(ctx: Context) -> None: ...

    with pytest.raises(DurationError, match=r"delay: '2h' is not before the deadline .*1h"):
        remind.options(delay="2h").call()
    assert remind.options(delay="2h", deadline="3h").call().job.deadline_ms == 3 * 3_600_000


def test_options_never_share_a_namespace_with_arguments(app: App) -> None:
    """DESIGN 11: a handler may well have a parameter called `key`."""

    @app.task
    async def odd(ctx: Context, key: str, delay: int, lane: str) -> None: ...

    call = odd.options(key="k").call(key="argument", delay=3, lane="left")

    assert call.key == "k"
    assert envelope(call.job).args == {"key": "argument", "delay": 3, "lane": "left"}
    assert call.job.delay_ms == 0


async def test_what_is_enqueued_while_a_job_runs_inherits_its_correlation_id(app: App) -> None:
    """DESIGN 11: else inherited from the enqueuing job; an option wins."""

    @app.task
    async def child(ctx: Context) -> None: ...

    async def handler() -> list[str | None]:
        current_correlation_id.set("request-9")
        return [
            envelope(child.call().job).correlation_id,
            envelope(child.options(correlation_id="own").call().job).correlation_id,
        ]

    assert await asyncio.create_task(handler()) == ["request-9", "own"]
    assert envelope(child.call().job).correlation_id is None


def test_each_call_is_a_new_job(app: App) -> None:
    """DESIGN 2: job_id: one request to run a task."""

    @app.task
    async def plain(ctx: Context) -> None: ...

    assert len({plain.call().job.job_id for _ in range(1000)}) == 1000


# --- handlers as functions -------------------------------------------------------------------------------


async def test_a_task_can_be_called_like_its_handler(app: App) -> None:
    """As in a unit test of one's own: calling it runs the handler itself."""

    @app.task
    async def add(ctx: Context, a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    @app.task
    def plain(ctx: Context, a: int) -> int:
        return -a

    running: Any = add(context(), 2)
    assert await running == 3
    assert plain(context(), 2) == -2
    assert add.__doc__ == "Add."
    assert not plain.is_async


def test_a_handler_logs_what_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    """DESIGN 12: ctx.log carries job, task, attempt and correlation id."""
    ctx = context(job_id="j1", task="pay", attempt=3, correlation_id="request-9")

    with caplog.at_level(logging.INFO):
        ctx.log.info("paid %s", 7)

    (record,) = caplog.records
    facts = {name: getattr(record, name) for name in ("job_id", "task", "attempt", "correlation_id")}
    assert record.getMessage() == "paid 7"
    assert facts == {"job_id": "j1", "task": "pay", "attempt": 3, "correlation_id": "request-9"}
    assert ctx.log is ctx.log


async def test_enqueue_hands_its_job_and_key_to_the_app() -> None:
    """A task needs of its app only `submit` and the router."""

    class Recorder:
        router = NO_RULES
        settings = Settings("x")

        def __init__(self) -> None:
            self.pressure: Mapping[str, Pressure] = {}
            self.seen: list[tuple[NewJob, str | None]] = []

        def promise(self, job_id: str) -> Any: ...

        async def feel(self) -> None: ...

        async def submit(self, job: NewJob, key: str | None, wait: float = 0.0) -> Any:
            self.seen.append((job, key))
            return job.job_id

    async def handler(ctx: Context, n: int) -> None: ...

    recorder = Recorder()
    declared = App("x").task(key="{n}")(handler)
    task: Task[..., Any] = Task("t", handler, declared.policy, declared.signature, recorder)

    handles: list[Any] = [await task.enqueue(5), await task.options(key="other").enqueue(5)]

    assert handles == [job.job_id for job, _ in recorder.seen]
    assert [key for _, key in recorder.seen] == ["5", "other"]
    assert orjson.loads(recorder.seen[0][0].envelope) == {"t": "t", "a": {"n": 5}, "k": "5"}
