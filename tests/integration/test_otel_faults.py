"""Traces whose parts fail: processors, exporters and samplers are others' code, and no job pays for them."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler, SamplingResult

from streamworker import App, Context, Worker
from streamworker.store import traces
from streamworker.telemetry import bearing, tracing
from tests.integration.serving import serving
from tests.servers import BenchServer

JOBS = 5


class Boom(RuntimeError):
    """What others' code raises."""


class Failing(SpanProcessor):
    """Raises at the start or at the end of each span."""

    def __init__(self, at: str, error: type[BaseException] = Boom) -> None:
        self._at, self._error = at, error

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        if self._at == "start":
            raise self._error

    def on_end(self, span: ReadableSpan) -> None:
        if self._at == "end":
            raise self._error


class Odd(Sampler):
    """Raises for each span."""

    def should_sample(self, *args: Any, **more: Any) -> SamplingResult:
        raise Boom

    def get_description(self) -> str:
        return "odd"


class NoIds(RandomIdGenerator):
    """Raises for each span."""

    def generate_span_id(self) -> int:
        raise Boom


def with_processor(processor: SpanProcessor) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(processor)
    return provider


def shut_down() -> TracerProvider:
    provider = with_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    provider.shutdown()
    return provider


PROVIDERS: dict[str, Callable[[], trace.TracerProvider]] = {
    "start": lambda: with_processor(Failing("start")),
    "end": lambda: with_processor(Failing("end")),
    "cancelled": lambda: with_processor(Failing("start", asyncio.CancelledError)),
    "cancelled end": lambda: with_processor(Failing("end", asyncio.CancelledError)),
    "sampler": lambda: TracerProvider(sampler=Odd()),
    "never sampled": lambda: TracerProvider(sampler=ALWAYS_OFF),
    "ids": lambda: TracerProvider(id_generator=NoIds()),
    "shut down": shut_down,
    "no sdk": trace.NoOpTracerProvider,
}


@pytest.fixture(autouse=True)
def _no_more_traces() -> Iterator[None]:
    yield
    tracing.disable()


def shop(server: BenchServer, namespace: str) -> App:
    app = App(namespace, redis_url=server.url)

    @app.task
    async def pack(ctx: Context) -> str:
        return ctx.correlation_id

    return app


@pytest.mark.parametrize("fault", PROVIDERS)
async def test_no_job_fails_of_its_traces_and_each_has_a_correlation_id_of_its_own(
    valkey: BenchServer, namespace: str, no_leaks: None, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    tracing.enable(PROVIDERS[fault]())
    app = shop(valkey, namespace)

    async with app, serving(app):
        jobs = [await app.tasks["pack"].enqueue() for _ in range(JOBS)]
        found = [await job.result(10) for job in jobs]

    assert len(set(found)) == JOBS
    assert trace.get_current_span() is trace.INVALID_SPAN
    said = [record for record in caplog.records if record.name == "streamworker.telemetry"]
    assert len(said) <= 3, "once for each kind of span, not for each job"
    assert not [record for record in caplog.records if record.levelno > logging.ERROR]


async def test_an_exporter_that_takes_long_is_left_alone_for_a_while(
    valkey: BenchServer, namespace: str, no_leaks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a collector that does not answer, behind a processor that exports at once: in the worker's loop."""
    clock = [0.0]
    monkeypatch.setattr(bearing, "now", lambda: clock[0])
    exported: list[str] = []

    class Slow(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            exported.append(span.name)
            clock[0] += 10.0

    tracing.enable(with_processor(Slow()))
    app = shop(valkey, namespace)
    async with app, serving(app):
        for _ in range(JOBS):
            await (await app.tasks["pack"].enqueue()).result(10)
        assert len(exported) == 1, "the others are not made"

        clock[0] += bearing.REST
        await (await app.tasks["pack"].enqueue()).result(10)

    assert len(exported) == 2, "it is tried again"


def test_who_leaves_without_the_interpreters_end_sends_its_last_spans_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch waits for seconds in memory, and `os._exit` runs nobody's end."""
    exporter = InMemorySpanExporter()
    tracing.enable(with_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000)))
    assert traces.active is not None
    traces.active.sending("pack", "normal", "j1", None).ended("ACCEPTED")
    monkeypatch.setattr(os, "_exit", Mock(side_effect=SystemExit))

    with pytest.raises(SystemExit):
        Worker(App("shop"))._leave("a handler")

    assert [span.name for span in exporter.get_finished_spans()] == ["enqueue normal"]


def test_a_collector_that_does_not_answer_keeps_nobody_from_leaving() -> None:
    stuck = threading.Event()

    class Stuck(SpanProcessor):
        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return stuck.wait(60)

    tracing.enable(with_processor(Stuck()))
    began = time.monotonic()

    traces.flush(0.05)

    assert time.monotonic() - began < 30
    stuck.set()
    tracing.enable(trace.NoOpTracerProvider())
    traces.flush(0.05)  # it has nothing to send
    tracing.disable()
    traces.flush(0.05)


def test_what_takes_a_moment_now_and_then_is_borne(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(bearing, "now", lambda: clock[0])
    borne = bearing.Bearing()

    def lasting(seconds: float) -> Callable[[], bool]:
        def call() -> bool:
            clock[0] += seconds
            return True

        return call

    for _ in range(100):
        assert borne.call("x", lasting(0.5))
        clock[0] += 10
    for _ in range(1000):  # a batch that is put in a queue
        assert borne.call("x", lasting(0.0001))
        clock[0] += 0.001
    tried = sum(borne.call("x", lasting(0.1)) or 0 for _ in range(100))
    assert 5 < tried < 20


def test_a_sending_that_is_collected_as_garbage_raises_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    tracing.enable(with_processor(Failing("end")))
    assert traces.active is not None

    traces.active.sending("pack", "normal", "j1", None)

    assert capfd.readouterr().err == ""
