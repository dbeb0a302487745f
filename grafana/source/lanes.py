"""One lane in depth: what waits, what runs, and what holds it up."""

from __future__ import annotations

from grafana.source.panels import (
    BAD,
    GOOD,
    NOTHING,
    UNKNOWN,
    UNSURE,
    Board,
    Marks,
    Panel,
    Section,
    Show,
    Step,
)
from grafana.source.promql import grown, now, quantile, seen, share, top

DEPTH = Section(
    "What waits",
    [
        Panel(
            "Depth by state",
            "Jobs by what they wait for: a slot (ready), a gate (parked), a time (scheduled), or that run.",
            "ready: slots. parked: gates. scheduled: retries and delays.",
            Step.LANE,
            [(now("queue_jobs", "state", state="ready|parked|scheduled|in_flight"), "{{state}}")],
            "short",
            Marks(1000, 10_000),
            stacked=True,
        ),
        Panel(
            "Ready by task",
            "Whose jobs wait for a slot.",
            "one task fills the lane: give it a lane of its own, a rate, or run it in `backlog`.",
            Step.TASK,
            [(seen(now("queue_jobs", "task", state="ready")), "{{task}}")],
            "short",
            Marks(1000, 10_000),
            stacked=True,
            empty=NOTHING,
        ),
        Panel(
            "In and out",
            "Jobs a second that were enqueued to the lane, and that ended there.",
            "`in` above `out` for long: the lane grows until somebody does something.",
            Step.LANE,
            [
                (grown("queue_enqueued", "lane"), "{{lane}} in"),
                (grown("jobs_processed", "lane", outcome="succeeded|failed"), "{{lane}} out"),
            ],
            "ops",
            Marks(5000, 10_000),
        ),
        Panel(
            "Oldest waiting and oldest parked",
            "Age of the oldest job that could start, and of the oldest that waits at a gate.",
            "an old parked job: `streamworker gates` names its gate and who holds it.",
            Step.GATES,
            [
                (top("queue_oldest_job_age_seconds", "lane"), "{{lane}} waiting"),
                (top("queue_oldest_parked_age_seconds", "lane"), "{{lane}} parked"),
            ],
            "s",
            Marks(60, 600),
        ),
        Panel(
            "Pressure",
            "What the router and producers are told of the lane.",
            "routes by pressure send jobs elsewhere now; the lane needs slots or fewer jobs.",
            Step.LANE,
            [(top("lane_pressure", "lane"), "{{lane}}")],
            "short",
            Marks(1, 2),
            top=2,
            names=("ok", "high", "over"),
        ),
        Panel(
            "Gates with most waiters",
            "Jobs that wait at each kind of gate.",
            "a limit is too low, a holder hangs, or a dependency is down: `streamworker gates NAME`.",
            Step.GATES,
            [(f"topk(8, {top('gate_waiting', 'gate')})", "{{gate}}")],
            "short",
            Marks(100, 1000),
            Show.BARS,
            empty=UNKNOWN,
        ),
    ],
)

RUNNING = Section(
    "What runs",
    [
        Panel(
            "Duration p95 by task",
            "How long handlers run.",
            "near the task's timeout, attempts are cut off: look at what it calls.",
            Step.TASK,
            [(quantile(0.95, "job_duration_seconds", "task"), "{{task}}")],
            "s",
            Marks(30, 300),
        ),
        Panel(
            "Wait p95 by lane",
            "From enqueue to the first start.",
            "slots are full, or the jobs stand at a gate.",
            Step.LANE,
            [(quantile(0.95, "job_wait_seconds", "lane"), "{{lane}}")],
            "s",
            Marks(10, 60),
        ),
        Panel(
            "Slots in use",
            "Slots that the lane fills, by those that it can fill.",
            "at 1 for long while jobs wait: add workers, or raise `--concurrency` if handlers only wait for "
            "networks.",
            Step.WORKERS,
            [
                (
                    share(
                        now("worker_slots", "lane", state="in_use"),
                        now("worker_slots", "lane", state="capacity"),
                    ),
                    "{{lane}}",
                )
            ],
            "percentunit",
            Marks(0.8, 0.95),
            top=1,
        ),
        Panel(
            "Longest running job",
            "How long the oldest running attempt has run.",
            "`streamworker jobs list --state processing` names it; it ends at its timeout.",
            Step.TASK,
            [(top("worker_longest_running_seconds", "lane"), "{{lane}}")],
            "s",
            Marks(60, 300),
        ),
        Panel(
            "Claims by result",
            "What the worker found when it asked for jobs, a second.",
            "`missing` and `final` are left-overs that are cleaned up; many of them follow a loss in Redis.",
            Step.REDIS,
            [(seen(grown("claims", "result")), "{{result}}")],
            "ops",
            Marks(5000, 10_000),
            stacked=True,
            empty=NOTHING,
            colours={"won": GOOD, "empty": "#8e8e8e", "conflict": BAD, "missing": UNSURE, "final": "orange"},
        ),
        Panel(
            "Claim conflicts",
            "Of the claims that found a job, the part that another worker had.",
            "leases run out while jobs run: blocked loops, a paused machine, a lease that is too short.",
            Step.LOCKS,
            [
                (
                    share(
                        grown("claims", "lane", result="conflict"),
                        grown("claims", "lane", result="won|conflict"),
                    ),
                    "{{lane}}",
                )
            ],
            "percentunit",
            Marks(0.05, 0.2),
            top=1,
        ),
    ],
)

SAFETY = Section(
    "Backlog, duplicates, locks",
    [
        Panel(
            "Backlog depth and drain",
            "Jobs in the backlog, and how many a second go on to their lane.",
            "it is a buffer, no store: raise the drain's rate if the target has room, or stop what fills it.",
            Step.BACKLOG,
            [
                (now("queue_jobs", lane="backlog", state="ready|parked"), "depth"),
                (grown("queue_backlog_drained"), "drained"),
            ],
            "short",
            Marks(10_000, 100_000),
            empty="never used",
            right={"drained": "ops"},
        ),
        Panel(
            "Backlog growth",
            "What the backlog gains a second over a quarter of an hour; below 0 it empties. At the right, "
            "whether the drain runs.",
            "it grows while the drain runs: the drain is too slow, or the target lane has no room.",
            Step.BACKLOG,
            [
                (f"deriv(({now('queue_jobs', lane='backlog', state='ready')})[15m:1m])", "growth"),
                (top("queue_backlog_drain_active"), "draining"),
            ],
            "ops",
            Marks(1, 10),
            bottom=None,
            empty="never used",
            right={"draining": "bool_on_off"},
        ),
        Panel(
            "Duplicates and stale outcomes",
            "Requests and results that were recognised as repeated, and outcomes that came too late to "
            "count.",
            "stale outcomes: workers lose their claims; look at lag, pauses and the lease.",
            Step.LOCKS,
            [
                (grown("duplicates", "stage"), "duplicate: {{stage}}"),
                (grown("stale_outcomes"), "stale"),
            ],
            "ops",
            Marks(1, 10),
            colours={"stale": BAD},
        ),
        Panel(
            "Recovered from dead workers",
            "Jobs that were taken back after a worker had died, in the window.",
            "a worker is killed again and again: out of memory, or a job that crashes it.",
            Step.WORKERS,
            [(seen(grown("queue_orphans_recovered", "task", how="increase")), "{{task}}")],
            "short",
            Marks(1, 100),
            width=6,
            empty=NOTHING,
        ),
        Panel(
            "Entities taken",
            "Jobs that found their entity taken and wait for it, by those that came.",
            "one entity gets most of the work, or its holder hangs: `streamworker gates` names both.",
            Step.GATES,
            [
                (
                    seen(share(grown("queue_contended", "task"), grown("queue_enqueued", "task"))),
                    "{{task}}",
                )
            ],
            "percentunit",
            Marks(0.5, 0.9),
            width=6,
            empty=NOTHING,
        ),
        Panel(
            "Lock contention",
            "Of the acquires of each kind of `ctx.lock`, the part that found it held.",
            "one entity gets most of the work, or a holder hangs: `streamworker gates`.",
            Step.LOCKS,
            [
                (
                    share(grown("lock_acquires", "lock", result="contended"), grown("lock_acquires", "lock")),
                    "{{lock}}",
                )
            ],
            "percentunit",
            Marks(0.5, 0.9),
            width=6,
            top=1,
        ),
        Panel(
            "Lock wait and hold p95",
            "How long a lock was waited for, and held.",
            "held long: do the slow call outside of it.",
            Step.LOCKS,
            [
                (quantile(0.95, "lock_wait_seconds", "lock"), "{{lock}} wait"),
                (quantile(0.95, "lock_held_seconds", "lock"), "{{lock}} held"),
            ],
            "s",
            Marks(5, 30),
            width=6,
        ),
    ],
)

BOARD = Board(
    "streamworker-lane",
    "streamworker: lane detail",
    "One lane in depth. Choose it above; its tasks follow.",
    [DEPTH, RUNNING, SAFETY],
)
