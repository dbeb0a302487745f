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
        self._strays = _Strays()
        self._snapshot: Snapshot | None = None
        #: How the outbox is; None: there is no Postgres, or it did not answer.
        self.outbox: Depth | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The last look; None: another one looks, and this process has nothing to say."""
        return self._snapshot

    @snapshot.setter
    def snapshot(self, seen: Snapshot | None) -> None:
        self._snapshot = seen
        if seen is None:
            self._strays = _Strays()

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
        labels = {key: (_label(key[0], tasks), self._codes.label(key[1])) for key in seen.dead_lettered}
        strays = self._strays.grown(seen.dead_lettered, labels)
        dead = _folded(seen.dead_lettered, labels.__getitem__)
        replayed = _folded(seen.replayed, lambda task: _label(task, tasks))
        for task in sorted({*tasks, *replayed, *(task for task, _ in dead)}):
            sheet.put("queue_replayed", replayed.get(task, 0), task)
            codes = {code for name, code in dead if name == task} | {*self._codes.declared}
            for code in sorted(codes - {OTHER}):
                sheet.put("queue_dead_lettered", dead.get((task, code), 0), task, code)
            sheet.put("queue_dead_lettered", strays.get(task, 0), task, OTHER)


class _Strays:
    """Dead letters whose codes have no label, by task: those since this process looks.

    Which codes these are changes with what it has imported. A total would jump by thousands of old letters
    when another process looks, or a module is loaded, and pass for a surge.
    """

    def __init__(self) -> None:
        self._before: Mapping[tuple[str, str], int] | None = None
        self._labels: Mapping[tuple[str, str], tuple[str, str]] = {}
        self._grown: Counter[str] = Counter()

    def grown(
        self, counts: Mapping[tuple[str, str], int], labels: Mapping[tuple[str, str], tuple[str, str]]
    ) -> Mapping[str, int]:
        """How many came, by the task's label, with these counters by task and code and their labels."""
        before, self._before = self._before, counts
        known, self._labels = self._labels, labels
        if before is None or before is counts:
            return self._grown
        more: Counter[str] = Counter()
        for key, count in counts.items():
            task, code = labels[key]
            if code == OTHER:
                more[task] += count - before.get(key, 0)
        for key in before.keys() - counts.keys():  # folded into others, see lua/fold.lua
            more[known[key][0]] -= before[key]
        for task, count in more.items():
            self._grown[task] += max(0, count)
        return self._grown


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
