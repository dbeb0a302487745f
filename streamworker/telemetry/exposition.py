"""A worker's numbers in the text that Prometheus reads, and several workers' texts as one."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from streamworker.telemetry.metrics import Histogram, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "streamworker_"


class WorkerCollector(Collector):
    """Turns the plain numbers into metric families when somebody asks."""

    def __init__(self, metrics: Metrics, version: str) -> None:
        self._metrics = metrics
        self._version = version

    def collect(self) -> Iterator[Metric]:
        """The families, as they stand."""
        yield from self._jobs()
        yield from self._times()
        yield from self._calls()
        yield from self._worker()

    def _jobs(self) -> Iterator[Metric]:
        claims = CounterMetricFamily(
            PREFIX + "claims", "What claims found, by lane.", labels=["lane", "result"]
        )
        for lane in self._metrics.lanes:
            claims.add_metric([lane, "won"], self._metrics.won[lane])
            claims.add_metric([lane, "empty"], self._metrics.empty[lane])
        processed = CounterMetricFamily(
            PREFIX + "jobs_processed", "Recorded outcomes.", labels=["lane", "task", "outcome"]
        )
        retries = CounterMetricFamily(
            PREFIX + "retries_scheduled", "Retries, by error code.", labels=["lane", "task", "error_code"]
        )
        for lane, cells in self._metrics.cells.items():
            for name, cell in cells.items():
                processed.add_metric([lane, name, "succeeded"], cell.succeeded)
                processed.add_metric([lane, name, "retried"], cell.retried)
                processed.add_metric([lane, name, "failed"], cell.failed)
                for code, count in sorted(cell.retries.items()):
                    retries.add_metric([lane, name, code], count)
        failures = CounterMetricFamily(
            PREFIX + "job_failures", "Jobs that failed for good.", labels=["task", "error_code"]
        )
        stale = CounterMetricFamily(
            PREFIX + "stale_outcomes", "Outcomes refused because the claim was lost.", labels=["task"]
        )
        for name, task in self._metrics.tasks.items():
            stale.add_metric([name], task.stale)
            for code, count in sorted(task.failures.items()):
                failures.add_metric([name, code], count)
        yield from (claims, processed, retries, failures, stale)

    def _times(self) -> Iterator[Metric]:
        duration = HistogramMetricFamily(
            PREFIX + "job_duration_seconds", "How long handlers ran.", labels=["task", "outcome"]
        )
        for name, task in self._metrics.tasks.items():
            for outcome in ("succeeded", "retried", "failed"):
                _add(duration, [name, outcome], getattr(task, outcome))
        wait = HistogramMetricFamily(
            PREFIX + "job_wait_seconds",
            "From enqueue to the first start; delays are part of it.",
            labels=["lane", "task"],
        )
        for lane, cells in self._metrics.cells.items():
            for name, cell in cells.items():
                _add(wait, [lane, name], cell.wait)
        lag = HistogramMetricFamily(PREFIX + "event_loop_lag_seconds", "How late the event loop was.")
        _add(lag, [], self._metrics.lag)
        yield from (duration, wait, lag)

    def _calls(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            PREFIX + "dependency_requests", "Calls of dependencies.", labels=["dependency", "result"]
        )
        duration = HistogramMetricFamily(
            PREFIX + "dependency_duration_seconds", "How long those calls took.", labels=["dependency"]
        )
        for name, cell in self._metrics.dependencies.items():
            for result, count in cell.results.items():
                requests.add_metric([name, result], count)
            _add(duration, [name], cell.duration)
        yield from (requests, duration)

    def _worker(self) -> Iterator[Metric]:
        status = self._metrics.status
        slots = GaugeMetricFamily(
            PREFIX + "worker_slots",
            "Slots that a lane can fill at most, has filled, and has for itself.",
            labels=["lane", "state"],
        )
        for lane, (capacity, reserved) in self._metrics.slots.items():
            slots.add_metric([lane, "capacity"], capacity)
            slots.add_metric([lane, "in_use"], status.busy.get(lane, 0))
            slots.add_metric([lane, "reserved"], reserved)
        errors = CounterMetricFamily(
            PREFIX + "redis_errors", "Lost connections and refused commands.", labels=["kind"]
        )
        for kind in sorted({"connection", "timeout", "reply"} | status.errors.keys()):
            errors.add_metric([kind], status.errors.get(kind, 0))
        build = GaugeMetricFamily(PREFIX + "build_info", "What runs here.", labels=["version", "python"])
        build.add_metric([self._version, platform.python_version()], 1)
        yield from (slots, errors, build)
        yield CounterMetricFamily(
            PREFIX + "keeper_recovered", "Jobs of dead workers that this one took back.", status.recovered
        )
        yield CounterMetricFamily(
            PREFIX + "keeper_promoted", "Due jobs that this worker brought back.", status.promoted
        )


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    counts, total = list(histogram.counts), histogram.total
    if not any(counts):
        return  # of tasks times lanes most are empty, and each would be 18 lines
    buckets: list[tuple[str, float]] = []
    so_far = 0
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], counts, strict=True):
        so_far += count
        buckets.append((bound, so_far))
    family.add_metric(labels, buckets, total)


class Page:
    """The text of one process, made when it is asked for."""

    def __init__(self, metrics: Metrics, version: str) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(WorkerCollector(metrics, version))
        ProcessCollector(registry=self._registry)

    def text(self) -> str:
        return generate_latest(self._registry).decode()


def merge(texts: Mapping[str, str]) -> str:
    """Several processes' texts as one: each sample gets the label `proc`, each family one head.

    By slot and not by pid, so that `rate()` goes on over a restart.
    """
    heads: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for proc, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("#"):
                _, kind, family, *_ = line.split(" ", 3)
                heads.setdefault(family, {}).setdefault(kind, line)
                samples.setdefault(family, [])
            elif line:
                samples.setdefault(family, []).append(_labelled(line, proc))
    return "".join(f"{line}\n" for line in _lines(heads, samples))


def _lines(heads: Mapping[str, Mapping[str, str]], samples: Mapping[str, list[str]]) -> Iterable[str]:
    for family, lines in samples.items():
        yield from heads.get(family, {}).values()
        yield from lines


def _labelled(sample: str, proc: str) -> str:
    name, separator, rest = sample.partition("{")
    if separator and " " not in name:
        comma = "" if rest.startswith("}") else ","
        return f'{name}{{proc="{proc}"{comma}{rest}'
    name, _, rest = sample.partition(" ")
    return f'{name}{{proc="{proc}"}} {rest}'
