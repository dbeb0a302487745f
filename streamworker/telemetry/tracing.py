"""Traces with OpenTelemetry (the extra `otel`): a span for each enqueue, each wait and each run.

Names and attributes follow the conventions for messaging. The context of the producer travels in the job's
envelope, so that a run, a retry and what a handler calls are in the trace of the request that caused them.
"""

from __future__ import annotations

import threading
import time

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "OpenTelemetry is not installed: pip install 'streamworker[otel]'", name=error.name
    ) from None

from streamworker.core.job import Claim, Envelope
from streamworker.core.outcome import Fail, Outcome, Retry
from streamworker.store import traces
from streamworker.telemetry.bearing import Bearing

SYSTEM = "streamworker"
_PARENT = "traceparent"
_propagator = TraceContextTextMapPropagator()
_NO_SEND, _NO_RUN, _NO_END = "an enqueue has no span", "a run has no span", "the end of a run has no span"


def enable(provider: trace.TracerProvider | None = None) -> None:
    """Make spans from now on, of this provider or the global one. Call it where the app is made.

    Producers and workers both need it: the former to send their context along, the latter to use it.
    """
    traces.active = _Tracer(provider)


def disable() -> None:
    """Make no more spans."""
    traces.active = None


class _NoSpan:
    """Stands in where no span could be made: processors are others' code, and may raise or take long."""

    context = ""

    def __init__(self, job_id: str) -> None:
        self.trace_id = job_id

    def ended(self, what: Outcome | str | None, error: BaseException | None = None) -> None: ...


class _Sending:
    def __init__(self, span: Span, job_id: str, bearing: Bearing) -> None:
        self._span, self._bearing = span, bearing
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, trace.set_span_in_context(span))
        self.context = carrier.get(_PARENT, "")
        found = span.get_span_context()
        # Without an SDK, or with one that is switched off, all spans have the same.
        self.trace_id = trace.format_trace_id(found.trace_id) if found.is_valid else job_id

    def __del__(self) -> None:
        # It was never sent, or by somebody else: as from an outbox.
        self._bearing.call(_NO_SEND, lambda: self._end(None, None))

    def ended(self, disposition: str | None, error: BaseException | None = None) -> None:
        self._bearing.call(_NO_SEND, lambda: self._end(disposition, error))

    def _end(self, disposition: str | None, error: BaseException | None) -> None:
        if not self._span.is_recording():  # sent again after a rejection
            return
        if disposition is not None:
            self._span.set_attribute("streamworker.disposition", disposition)
        if error is not None:
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class _Attempt:
    def __init__(self, span: Span, parent: contexts.Context, bearing: Bearing) -> None:
        self._span, self._bearing = span, bearing
        self._token = contexts.attach(trace.set_span_in_context(span, parent))

    def ended(self, outcome: Outcome) -> None:
        contexts.detach(self._token)
        self._bearing.call(_NO_END, lambda: self._end(outcome))

    def _end(self, outcome: Outcome) -> None:
        self._span.set_attribute("streamworker.outcome", type(outcome).__name__.lower())
        self._span.set_attribute("streamworker.reason", str(outcome.reason))
        if isinstance(outcome, Retry | Fail):
            self._span.set_attribute("error.type", outcome.code)
            self._span.set_attribute("streamworker.error_class", str(outcome.error_class))
            self._span.set_status(Status(StatusCode.ERROR, outcome.code))
        self._span.end()


class _Tracer:
    def __init__(self, provider: trace.TracerProvider | None) -> None:
        self._tracer = trace.get_tracer(SYSTEM, tracer_provider=provider)
        self._provider = provider
        self._bearing = Bearing()

    def sending(self, task: str, lane: str, job_id: str, correlation_id: str | None) -> _Sending | _NoSpan:
        made = self._bearing.call(_NO_SEND, lambda: self._sending(task, lane, job_id, correlation_id))
        return made or _NoSpan(job_id)

    def _sending(self, task: str, lane: str, job_id: str, correlation_id: str | None) -> _Sending:
        attributes = _attributes("send", "enqueue", task, lane, job_id)
        if correlation_id is not None:
            attributes["messaging.message.conversation_id"] = correlation_id
        span = self._tracer.start_span(f"enqueue {lane}", kind=SpanKind.PRODUCER, attributes=attributes)
        return _Sending(span, job_id, self._bearing)

    def flush(self, seconds: float) -> None:
        provider = self._provider or trace.get_tracer_provider()
        flush = getattr(provider, "force_flush", None)  # of the SDK's; the API has none
        if flush is None:
            return
        # In a thread of its own: exporters wait for their collector, whatever they are told.
        sending = threading.Thread(
            target=lambda: self._bearing.call(_NO_SEND, flush), name="streamworker-spans", daemon=True
        )
        sending.start()
        sending.join(seconds)

    def attempt(self, claim: Claim, envelope: Envelope) -> _Attempt | _NoSpan:
        made = self._bearing.call(_NO_RUN, lambda: self._attempt(claim, envelope))
        return made or _NoSpan(claim.job_id)

    def _attempt(self, claim: Claim, envelope: Envelope) -> _Attempt:
        parent = contexts.Context()
        if isinstance(envelope.trace, str):
            parent = _propagator.extract({_PARENT: envelope.trace}, parent)
        now = time.time_ns()
        place = (envelope.task, claim.lane, claim.job_id)
        if claim.starts == 1:  # a later start waited for a retry as well, which is no wait for a slot
            waited = self._tracer.start_span(
                f"wait {claim.lane}",
                context=parent,
                kind=SpanKind.INTERNAL,
                attributes=_attributes("receive", "wait", *place),
                start_time=now - claim.age_ms * 1_000_000,
            )
            waited.end(now)
        attributes = _attributes("process", "run", *place)
        attributes |= {"streamworker.attempt": claim.attempt, "streamworker.fence": claim.fence}
        if envelope.correlation_id is not None:
            attributes["messaging.message.conversation_id"] = envelope.correlation_id
        span = self._tracer.start_span(
            f"run {claim.lane}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes, start_time=now
        )
        return _Attempt(span, parent, self._bearing)


def _attributes(kind: str, name: str, task: str, lane: str, job_id: str) -> dict[str, str | int]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "messaging.destination.name": lane,
        "messaging.message.id": job_id,
        "streamworker.task": task,
    }
