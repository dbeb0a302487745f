"""A worker's numbers in the text that Prometheus reads, and several workers' texts as one."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from streamworker.telemetry.catalogue import BY_NAME, Scope
from streamworker.telemetry.families import Sheet
from streamworker.telemetry.labels import OTHER
from streamworker.telemetry.metrics import Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Kinds of errors of Redis that start at 0.
_ERRORS = ("connection", "timeout", "reply")
#: Breakers that are not closed, as numbers; one that closes by its ramp lets all pass.
_BREAKER = {"half_open": 1, "open": 2}

#: Fills what one scope has to tell; called when somebody asks.
Filler = Callable[[Sheet], None]


class WorkerNumbers:
    """Fills the sheet of a worker."""

    def __init__(self, metrics: Metrics, version: str) -> None:
        self._metrics = metrics
        self._version = version

    def __call__(self, sheet: Sheet) -> None:
        """The numbers as they stand."""
        self._jobs(sheet)
        self._tasks(sheet)
        self._calls(sheet)
        self._worker(sheet)

    def _jobs(self, sheet: Sheet) -> None:
        for lane, claims in self._metrics.claims.items():
            for result, count in claims.items():
                sheet.put("claims", count, lane, result)
        for lane, cells in self._metrics.cells.items():
            for name, cell in cells.items():
                for outcome in BY_NAME["jobs_processed"].values["outcome"]:
                    sheet.put("jobs_processed", sum(getattr(cell, outcome)), lane, name, outcome)
                for code, count in sorted(cell.retries.items()):
                    sheet.put("retries_scheduled", count, lane, name, code)
                sheet.spread("execution_attempt", cell.attempt, lane, name)
                sheet.spread("job_wait_seconds", cell.wait, lane, name)
                sheet.spread("job_end_to_end_seconds", cell.end_to_end, lane, name)

    def _tasks(self, sheet: Sheet) -> None:
        lanes = self._metrics.cells.values()
        values = BY_NAME["attempts"].values
        for name, task in self._metrics.tasks.items():
            sheet.put("stale_outcomes", task.stale, name)
            sheet.put("job_skips", task.skips, name)
            for stage, count in task.duplicates.items():
                sheet.put("duplicates", count, name, stage)
            for code, count in sorted(task.failures.items()):
                sheet.put("job_failures", count, name, code)
            for outcome in values["outcome"]:
                sheet.spread("job_duration_seconds", getattr(task, outcome), name, outcome)
                if name == OTHER:
                    continue
                for place, attempt in enumerate(values["attempt"]):
                    count = sum(getattr(cells[name], outcome)[place] for cells in lanes)
                    sheet.put("attempts", count, name, attempt, outcome)

    def _calls(self, sheet: Sheet) -> None:
        for name, calls in self._metrics.dependencies.items():
            for result, count in calls.results.items():
                sheet.put("dependency_requests", count, name, result)
            sheet.spread("dependency_duration_seconds", calls.duration, name)
        passed, waited = dict(self._metrics.passed), dict(self._metrics.waited)
        for limiter in sorted({*passed, *waited}):
            sheet.put("limiter_decisions", passed.get(limiter, 0), limiter, "passed")
            sheet.put("limiter_decisions", waited.get(limiter, 0), limiter, "waited")
        for result, count in list(self._metrics.cache.items()):
            sheet.put("cache_requests", count, "app", result)
        for name, state in self._metrics.status.breakers.items():
            sheet.put("breaker_state", _BREAKER.get(state, 0), name)
        for name, lock in list(self._metrics.locks.items()):
            for result, count in lock.results.items():
                sheet.put("lock_acquires", count, name, result)
            sheet.spread("lock_wait_seconds", lock.wait, name)
            sheet.spread("lock_held_seconds", lock.held, name)
        for script, seconds in list(self._metrics.calls.items()):
            sheet.spread("redis_call_duration_seconds", seconds, script)

    def _worker(self, sheet: Sheet) -> None:
        status = self._metrics.status
        for lane, (capacity, reserved) in self._metrics.slots.items():
            sheet.put("worker_slots", capacity, lane, "capacity")
            sheet.put("worker_slots", status.busy.get(lane, 0), lane, "in_use")
            sheet.put("worker_slots", reserved, lane, "reserved")
            sheet.put("worker_longest_running_seconds", status.longest.get(lane, 0.0), lane)
        for kind in sorted({*_ERRORS, *status.errors}):
            sheet.put("redis_errors", status.errors.get(kind, 0), kind)
        sheet.spread("event_loop_lag_seconds", self._metrics.lag)
        sheet.put("keeper_recovered", status.recovered)
        sheet.put("keeper_promoted", status.promoted)
        sheet.put("build_info", 1, self._version, platform.python_version())


class _Families(Collector):
    def __init__(self, fillers: Mapping[Scope, Filler]) -> None:
        self._fillers = fillers

    def collect(self) -> Iterator[Metric]:
        for scope, fill in self._fillers.items():
            sheet = Sheet(scope)
            fill(sheet)
            yield from sheet.families()


class Page:
    """The text of one process, made when it is asked for."""

    def __init__(self, fillers: Mapping[Scope, Filler]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Families(fillers))
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
        for line in text.split("\n"):  # a label may have what `splitlines` takes for an end as well
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
