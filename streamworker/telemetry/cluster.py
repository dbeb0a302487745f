"""What Redis knows, as metrics: filled from the last look of whoever was elected to look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from streamworker.core.lane import Pressure
from streamworker.ops.snapshot import STATES, Snapshot
from streamworker.outbox.depth import Depth
from streamworker.telemetry.catalogue import BY_NAME
from streamworker.telemetry.families import Sheet
from streamworker.telemetry.labels import MAX_GATES, MAX_TASKS, OTHER, Codes, gate_label

K = TypeVar("K")

_LEVELS = {level: place for place, level in enumerate(Pressure)}


class ClusterNumbers:
    """Fills the sheet of the cluster; nothing when nobody has looked here lately."""

    def __init__(self, *, codes: Codes, expected: int | None) -> None:
        self._codes = codes
        self._expected = expected
        #: The last look; None: another one looks, and this process has nothing to say.
        self.snapshot: Snapshot | None = None
        #: How the outbox is; None: there is no Postgres, or it did not answer.
        self.outbox: Depth | None = None

    def __call__(self, sheet: Sheet) -> None:
        """The numbers of the last look."""
        seen = self.snapshot
        if seen is None:
            return
        tasks = _bounded(seen.tasks, MAX_TASKS)
        self._jobs(sheet, seen, tasks)
        for lane, look in seen.lanes.items():
            sheet.put("queue_oldest_job_age_seconds", look.oldest or 0.0, lane)
            sheet.put("queue_oldest_parked_age_seconds", look.oldest_parked or 0.0, lane)
            if look.target is not None:
                sheet.put("lane_target_age_seconds", look.target, lane)
            sheet.put("lane_pressure", _LEVELS[look.pressure], lane)
            sheet.put("queue_paused", int(look.paused), lane)
        sheet.put("queue_backlog_drain_active", int(seen.draining))
        for limiter, (left, capacity) in seen.buckets.items():
            sheet.put("token_bucket_tokens", left, limiter)
            sheet.put("token_bucket_capacity", capacity, limiter)
        about = _bounded(seen.gates, MAX_GATES)
        waiting = _folded(seen.waiting, lambda gate: gate_label(gate, about))
        for gate in sorted({*(each.rstrip(":") for each in about), *waiting}):
            sheet.put("gate_waiting", waiting.get(gate, 0), gate)
        sheet.put("workers_registered", seen.workers)
        if self._expected is not None:
            sheet.put("workers_expected", self._expected)
        sheet.put("collector_last_success_timestamp_seconds", seen.at)
        if seen.lag is not None:
            sheet.put("mirror_lag_seconds", seen.lag.seconds)
            sheet.put("mirror_lag_events", seen.lag.entries)
        if self.outbox is not None:
            sheet.put("outbox_lag_seconds", self.outbox.lag_seconds)
            sheet.put("outbox_pending_rows", self.outbox.pending)
            sheet.put("outbox_refused_rows", self.outbox.refused)

    def _jobs(self, sheet: Sheet, seen: Snapshot, tasks: Collection[str]) -> None:
        def lane_task(key: tuple[str, str]) -> tuple[str, str]:
            return _label(key[0], seen.lanes), _label(key[1], tasks)

        states = BY_NAME["queue_jobs"].values["state"]
        jobs = _folded(seen.jobs, lambda key: (*lane_task((key[0], key[1])), key[2]))
        enqueued = _folded(seen.enqueued, lane_task)
        recovered = _folded(seen.recovered, lane_task)
        contended = _folded(seen.contended, lane_task)
        # All registered tasks in all lanes from the start, so that `increase` sees the first one.
        for lane, task in sorted({*enqueued, *((lane, task) for lane in seen.lanes for task in tasks)}):
            for state in states:
                sheet.put("queue_jobs", max(0, jobs.get((lane, task, state), 0)), lane, task, state)
            sheet.put("queue_enqueued", enqueued.get((lane, task), 0), lane, task)
            sheet.put("queue_orphans_recovered", recovered.get((lane, task), 0), lane, task)
            sheet.put("queue_contended", contended.get((lane, task), 0), lane, task)
        drained = _folded(seen.drained, lambda task: _label(task, tasks))
        for task in sorted({*tasks, *drained}):
            sheet.put("queue_backlog_drained", drained.get(task, 0), task)
        admissions = _folded(seen.admissions, lambda key: (_label(key[0], seen.lanes), key[1], key[2]))
        for (lane, decision, reason), count in sorted(admissions.items()):
            sheet.put("queue_admissions", count, lane, decision, reason)
        dead = _folded(seen.dead_lettered, lambda key: (_label(key[0], tasks), self._codes.label(key[1])))
        replayed = _folded(seen.replayed, lambda task: _label(task, tasks))
        for task in sorted({*tasks, *replayed, *(task for task, _ in dead)}):
            sheet.put("queue_replayed", replayed.get(task, 0), task)
            codes = {code for name, code in dead if name == task}
            for code in sorted({*codes, *self._codes.declared}):
                sheet.put("queue_dead_lettered", dead.get((task, code), 0), task, code)


assert set(STATES.values()) | {"dead"} == set(BY_NAME["queue_jobs"].values["state"])


def _bounded(names: Collection[str], limit: int) -> frozenset[str]:
    return frozenset(sorted(names)[:limit])


def _label(name: str, known: Collection[str]) -> str:
    return name if name in known else OTHER


def _folded(counts: Mapping[K, int], label: Callable[[K], K]) -> dict[K, int]:
    """The counts by label instead of by name."""
    found: Counter[K] = Counter()
    for name, count in counts.items():
        found[label(name)] += count
    return dict(found)
