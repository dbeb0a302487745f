"""Every metric, once: collectors, documentation and the checks of dashboards follow this table.

No label ever carries a job id, a key or the name of one lock (R48).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

PREFIX = "streamworker_"


class Kind(StrEnum):
    """What Prometheus makes of the samples."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """Who tells it, which decides how it is added up."""

    WORKER = "worker"  # each worker counts its own: ask for `sum`
    CLUSTER = "cluster"  # Redis counts, and one collector reads it: ask for `max by`, never for a bare sum
    MIRROR = "mirror"  # the mirror's own endpoint
    RELAY = "relay"  # the own endpoint of a relay of the outbox


#: Upper bounds of durations and waits, in seconds.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
#: Upper bounds of the loop's lag and of calls of Redis, in seconds.
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: Upper bounds of a batch of the mirror, in seconds.
BATCH_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Attempts that are told apart.
ATTEMPTS = (1.0, 2.0, 3.0, 4.0, 5.0)


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric. `values` are those of its labels that can be listed; other labels name what the app has."""

    name: str
    kind: Kind
    scopes: tuple[Scope, ...]
    labels: tuple[str, ...]
    help: str
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """Without `_total`."""
        return PREFIX + self.name

    @property
    def sample(self) -> str:
        """The name to ask Prometheus for; of a histogram there are `_bucket`, `_sum` and `_count`."""
        return self.full_name + ("_total" if self.kind is Kind.COUNTER else "")


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_W, _R, _M, _O = (Scope.WORKER,), (Scope.CLUSTER,), (Scope.MIRROR,), (Scope.RELAY,)
_OUTCOMES = ("succeeded", "retried", "failed")

CATALOGUE: tuple[Spec, ...] = (
    # --- cluster: what Redis knows
    Spec("queue_jobs", _G, _R, ("lane", "task", "state"), "Jobs by where they are; `dead` are in the DLQ.",
         {"state": ("ready", "parked", "scheduled", "in_flight", "dead")}),
    Spec("queue_oldest_job_age_seconds", _G, _R, ("lane",),
         "Since the oldest job in a lane's streams was enqueued."),
    Spec("queue_oldest_parked_age_seconds", _G, _R, ("lane",),
         "Since the job that waits longest at a gate was enqueued."),
    Spec("lane_target_age_seconds", _G, _R, ("lane",),
         "The age that a waiting job of the lane should not pass."),
    Spec("lane_pressure", _G, _R, ("lane",), "0 ok, 1 high, 2 over."),
    Spec("queue_paused", _G, _R, ("lane",), "1 while the lane is paused."),
    Spec("queue_enqueued", _C, _R, ("lane", "task"), "Jobs that were accepted."),
    Spec("queue_admissions", _C, _R, ("lane", "decision", "reason"),
         "What became of enqueues: jobs that were accepted, and requests that made none.",
         {"decision": ("accepted", "deferred", "rejected", "coalesced", "duplicate", "conflict"),
          "reason": ("", "asked", "rule", "task", "lane_full", "throttled", "backlog_full", "log_full")}),
    Spec("queue_dead_lettered", _C, _R, ("task", "error_code"), "Jobs that became dead letters."),
    Spec("queue_replayed", _C, _R, ("task",), "Dead letters that an operator let run again."),
    Spec("queue_backlog_drained", _C, _R, ("task",), "Jobs moved from the backlog to their lane."),
    Spec("queue_backlog_drain_active", _G, _R, (), "1 unless the drain of the backlog is off or paused."),
    Spec("queue_contended", _C, _R, ("lane", "task"),
         "Jobs that found their entity taken, at the enqueue or a claim, and wait for it."),
    Spec("queue_orphans_recovered", _C, _R, ("lane", "task"), "Claims of dead workers that were taken back."),
    Spec("token_bucket_tokens", _G, _R, ("limiter",),
         "Tokens that a rate has left; of rates with one bucket."),
    Spec("token_bucket_capacity", _G, _R, ("limiter",), "Tokens that it can hold."),
    Spec("gate_waiting", _G, _R, ("gate",), "Jobs that wait at gates, by what the gates are about."),
    Spec("workers_registered", _G, _R, (), "Workers that gave a sign of life within two leases."),
    Spec("workers_expected", _G, _R, (), "Workers that there should be, by STREAMWORKER_WORKERS_EXPECTED."),
    Spec("collector_last_success_timestamp_seconds", _G, _R, (),
         "When Redis was last read for these metrics."),
    Spec("mirror_lag_seconds", _G, (*_R, *_M), (),
         "Age of the oldest entry of the log that is not in Postgres."),
    Spec("mirror_lag_events", _G, (*_R, *_M), (), "Entries of the log that are not in Postgres."),
    Spec("outbox_lag_seconds", _G, (*_R, *_O), (),
         "Age of the request in the outbox that has waited longest for a relay; 0: none waits."),
    Spec("outbox_pending_rows", _G, (*_R, *_O), (),
         "Requests in the outbox that wait for a relay; 100000 stands for as many or more."),
    Spec("outbox_refused_rows", _G, (*_R, *_O), (),
         "Requests in the outbox that were put aside: no relay tries them again before somebody says so."),
    # --- worker: what each one did
    Spec("claims", _C, _W, ("lane", "result"), "What claims found; `empty`: times that a lane had nothing.",
         {"result": ("won", "conflict", "missing", "final", "empty")}),
    Spec("jobs_processed", _C, _W, ("lane", "task", "outcome"), "Recorded outcomes.", {"outcome": _OUTCOMES}),
    Spec("attempts", _C, _W, ("task", "attempt", "outcome"), "Recorded outcomes by attempt.",
         {"attempt": ("1", "2", "3", "4", "5+"), "outcome": _OUTCOMES}),
    Spec("execution_attempt", _H, _W, ("lane", "task"),
         "Which attempt began, told at the claim.", buckets=ATTEMPTS),
    Spec("job_failures", _C, _W, ("task", "error_code"), "Jobs that failed for good."),
    Spec("retries_scheduled", _C, _W, ("lane", "task", "error_code"), "Retries."),
    Spec("duplicates", _C, _W, ("task", "stage"),
         "Successes whose work was found done: by `duplicate_on`, or as an effect in Postgres.",
         {"stage": ("handler", "effect")}),
    Spec("stale_outcomes", _C, _W, ("task",), "Outcomes refused because the claim was lost."),
    Spec("lock_acquires", _C, _W, ("lock", "result"),
         "Asked for a `ctx.lock`; `contended`: it had to wait. An entity is in `queue_contended`.",
         {"result": ("won", "contended", "busy", "lost")}),
    Spec("lock_wait_seconds", _H, _W, ("lock",), "How long a `ctx.lock` was waited for.", buckets=SECONDS),
    Spec("lock_held_seconds", _H, _W, ("lock",), "How long a `ctx.lock` was held.", buckets=SECONDS),
    Spec("job_duration_seconds", _H, _W, ("task", "outcome"),
         "How long handlers ran.", {"outcome": _OUTCOMES},
         buckets=SECONDS),
    Spec("job_wait_seconds", _H, _W, ("lane", "task"),
         "From enqueue to the first claim; a delay is part of it.",
         buckets=SECONDS),
    Spec("job_end_to_end_seconds", _H, _W, ("lane", "task"),
         "From enqueue to the end, retries and delays included.",
         buckets=SECONDS),
    Spec("job_skips", _C, _W, ("task",), "Successes with nothing to do (`Skip`)."),
    Spec("worker_longest_running_seconds", _G, _W, ("lane",), "Of the jobs that run now, the longest."),
    Spec("dependency_requests", _C, _W, ("dependency", "result"), "Calls inside `ctx.dependency(…)`.",
         {"result": ("ok", "error", "timeout")}),
    Spec("dependency_duration_seconds", _H, _W, ("dependency",),
         "How long those calls took.", buckets=SECONDS),
    Spec("breaker_state", _G, _W, ("dependency",), "0 closed, 1 half open, 2 open."),
    Spec("cache_requests", _C, _W, ("cache", "result"), "What came of asking a cache.",
         {"result": ("hit", "miss", "waited", "corrupt", "error", "invalidated", "invalidation_failed")}),
    Spec("limiter_decisions", _C, _W, ("limiter", "decision"),
         "What rates and concurrencies decided when a claim found a job, by what they are about.",
         {"decision": ("passed", "waited")}),
    Spec("worker_slots", _G, _W, ("lane", "state"),
         "Slots that a lane can fill at most, has filled, has for itself.",
         {"state": ("capacity", "in_use", "reserved")}),
    Spec("redis_call_duration_seconds", _H, _W, ("script",), "From the call of a script to its reply.",
         buckets=SHORT_SECONDS),
    Spec("redis_errors", _C, _W, ("kind",), "Lost connections and refused commands."),
    Spec("event_loop_lag_seconds", _H, _W, (),
         "How late the event loop was, each 50 ms.", buckets=SHORT_SECONDS),
    Spec("keeper_recovered", _C, _W, (), "Jobs of dead workers that this one took back."),
    Spec("keeper_promoted", _C, _W, (), "Due retries and delays that this worker brought back."),
    Spec("build_info", _G, _W, ("version", "python"), "1; what runs here."),
    # --- mirror
    Spec("mirror_rows_written", _C, _M, ("table",),
         "Rows in Postgres.", {"table": ("jobs", "job_transitions")}),
    Spec("mirror_errors", _C, _M, ("kind",),
         "What went wrong; `row` is kept in `mirror_refused`, `conflict` in `mirror_conflicts`.",
         {"kind": ("connection", "timeout", "read_only", "refused", "schema", "error", "redis", "row",
                   "conflict", "gap")}),
    Spec("mirror_batch_duration_seconds", _H, _M, (), "From the first statement of a batch to its commit.",
         buckets=BATCH_SECONDS),
    Spec("mirror_state", _G, _M, ("state",), "1 for what it does now."),
    Spec("mirror_log_bytes", _G, _M, (), "Bytes in the log; at its bound enqueues are refused."),
    # --- relay
    Spec("outbox_relayed", _C, _O, ("result",),
         "Requests of the outbox that Redis has, that were put aside, or that it did not take for now.",
         {"result": ("published", "refused", "rejected")}),
)  # fmt: skip

BY_NAME: Mapping[str, Spec] = {spec.name: spec for spec in CATALOGUE}


def of_scope(scope: Scope) -> list[Spec]:
    """What is told in a scope, in the order of the table."""
    return [spec for spec in CATALOGUE if scope in spec.scopes]
