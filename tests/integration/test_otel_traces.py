"""Traces: what a request caused is in its trace, over retries, threads and jobs that jobs enqueue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from streamworker import App, Context, PersistentError, Request, SyncClient, TransientError
from streamworker.client import Client
from streamworker.core.retry import Retry
from streamworker.store import traces
from streamworker.telemetry import tracing
from tests.integration.serving import failure, serving
from tests.servers import BenchServer


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Every span that has ended, in the order in which they did."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.enable(provider)
    yield exporter
    tracing.disable()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def shop(server: BenchServer, namespace: str) -> App:
    app = App(namespace, redis_url=server.url)

    @app.task(retry=Retry.schedule("1s", jitter=0))
    async def pack(ctx: Context, fails: int = 0) -> str:
        with trace.get_tracer("shop").start_as_current_span("inner"):
            if ctx.attempt <= fails:
                raise TransientError("again", code="carrier_away")
        return ctx.correlation_id

    @app.task
    def thread(ctx: Context) -> str:
        return f"{trace.get_current_span().get_span_context().trace_id:x}"

    @app.task
    async def refuse(ctx: Context) -> None:
        raise PersistentError("no", code="refused")

    return app


async def test_a_job_is_in_the_trace_of_its_producer(
    valkey: BenchServer, namespace: str, no_leaks: None, spans: InMemorySpanExporter
) -> None:
    app = shop(valkey, namespace)
    async with app, serving(app):
        job = await app.tasks["pack"].enqueue(fails=1)
        correlation_id = await job.result(10)

    (sent,), (waited,) = named(spans, "enqueue normal"), named(spans, "wait normal")
    runs = named(spans, "run normal")
    assert len(runs) == 2, "the second attempt is in the trace as well; it waited for no slot"
    assert {trace_of(span) for span in (sent, waited, *runs)} == {trace_of(sent)}
    assert {parent_of(span) for span in (waited, *runs)} == {id_of(sent)}
    assert correlation_id == f"{trace_of(sent):032x}", "the trace id, where nobody gave another one"
    assert (sent.kind, waited.kind, runs[0].kind) == (SpanKind.PRODUCER, SpanKind.INTERNAL, SpanKind.CONSUMER)
    attributes = dict(runs[0].attributes or {})
    assert attributes == {
        "messaging.system": "streamworker",
        "messaging.operation.type": "process",
        "messaging.operation.name": "run",
        "messaging.destination.name": "normal",
        "messaging.message.id": job.id,
        "messaging.message.conversation_id": correlation_id,
        "streamworker.task": "pack",
        "streamworker.attempt": 1,
        "streamworker.fence": attributes["streamworker.fence"],
        "streamworker.outcome": "retry",
        "streamworker.reason": "error",
        "streamworker.error_class": "transient",
        "error.type": "carrier_away",
    }
    assert [run.status.status_code for run in runs] == [StatusCode.ERROR, StatusCode.UNSET]
    assert (sent.attributes or {})["streamworker.disposition"] == "ACCEPTED"
    assert waited.start_time is not None
    assert waited.end_time is not None
    assert sent.start_time is not None
    assert waited.end_time <= (runs[0].start_time or 0)


async def test_what_a_handler_calls_is_within_its_run_also_in_a_thread(
    valkey: BenchServer, namespace: str, no_leaks: None, spans: InMemorySpanExporter
) -> None:
    app = shop(valkey, namespace)
    async with app, serving(app):
        seen = await (await app.tasks["thread"].enqueue()).result(10)

    (run,) = named(spans, "run normal")
    assert seen == f"{trace_of(run):x}"


async def test_a_request_that_has_a_span_is_the_parent(
    valkey: BenchServer, namespace: str, no_leaks: None, spans: InMemorySpanExporter
) -> None:
    provider = TracerProvider()
    async with Client(valkey.url, app=namespace) as client:
        with provider.get_tracer("web").start_as_current_span("request") as request:
            await client.enqueue("pack", {})
            await client.enqueue_many([Request("pack", {}), Request("pack", {})])
    with (
        provider.get_tracer("web").start_as_current_span("other"),
        SyncClient(valkey.url, app=namespace) as sync,
    ):
        await asyncio.to_thread(sync.enqueue, "pack", {})

    sent = named(spans, "enqueue normal")
    assert len(sent) == 4
    assert [parent_of(span) for span in sent[:3]] == [request.get_span_context().span_id] * 3
    assert all((span.attributes or {})["streamworker.disposition"] == "ACCEPTED" for span in sent)
    assert trace_of(sent[3]) != trace_of(sent[0])


async def test_a_job_that_fails_for_good_is_an_error(
    valkey: BenchServer, namespace: str, no_leaks: None, spans: InMemorySpanExporter
) -> None:
    app = shop(valkey, namespace)
    async with app, serving(app):
        await failure(await app.tasks["refuse"].enqueue())

    (run,) = named(spans, "run normal")
    assert (run.status.status_code, run.status.description) == (StatusCode.ERROR, "refused")


async def test_a_call_that_is_never_sent_ends_its_span(spans: InMemorySpanExporter) -> None:
    call = App("shop").task(handler_of_nothing).call()
    del call

    (sent,) = named(spans, "enqueue normal")
    assert "streamworker.disposition" not in (sent.attributes or {})


async def handler_of_nothing(ctx: Context) -> None:
    return None


def test_without_a_tracer_nothing_travels() -> None:
    assert traces.active is None
    job = App("shop").task(handler_of_nothing).call().job
    assert (b'"p"' in job.envelope, job.sending) == (False, None)
