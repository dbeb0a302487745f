"""For who is on call: is anything wrong, and which lane, task or dependency is it?"""

from __future__ import annotations

from grafana.source.panels import BAD, GOOD, UNKNOWN, UNSURE, Board, Marks, Panel, Section, Show, Step
from grafana.source.promql import grown, most, now, quantile, share, top, worst

ENDED = "succeeded|failed"
#: Alerts that fire, of the apps that are chosen; one on metrics that are gone has no job.
FIRING = 'ALERTS{alertname=~"Streamworker.+", alertstate="firing", job=~"$job|"}'
#: The same, with the seconds since each began to be true.
SINCE = (
    'label_replace((time() - ALERTS_FOR_STATE{alertname=~"Streamworker.+", job=~"$job|"})\n'
    f"and ignoring (alertstate) {FIRING}, "
    '"alert", "$1", "alertname", "Streamworker(.+)")'
)

AT_A_GLANCE = Section(
    "At a glance",
    [
        Panel(
            "Oldest priority job",
            "How long the oldest job of the lane `priority` has waited since it was enqueued.",
            "look at *Which lane* below. Slots all in use: add workers, unless a dependency is slow. "
            "Slots free: look for pauses and gates.",
            Step.LANE,
            [(top("queue_oldest_job_age_seconds", lane="priority"), "age")],
            "s",
            Marks(10, 30),
            Show.STAT,
            width=3,
            height=4,
            empty=UNKNOWN,
        ),
        Panel(
            "Ready jobs",
            "Jobs of all lanes that could start now.",
            "compare *In against out*. What comes in faster than it goes out needs workers, or a producer "
            "that is throttled.",
            Step.LANE,
            [(now("queue_jobs", state="ready"), "ready")],
            "short",
            Marks(1000, 10_000),
            Show.STAT,
            width=3,
            height=4,
        ),
        Panel(
            "Success rate",
            "Of the jobs that ended, the part that succeeded.",
            "*Which task* below names the task and its error code; read one of its dead letters.",
            Step.TASK,
            [
                (
                    share(
                        grown("jobs_processed", outcome="succeeded"),
                        grown("jobs_processed", outcome=ENDED),
                    ),
                    "succeeded",
                )
            ],
            "percentunit",
            Marks(0.99, 0.95, falling=True),
            Show.STAT,
            width=3,
            height=4,
            top=1,
            empty="no job ended",
        ),
        Panel(
            "Dead letters",
            "Jobs that failed for good and wait for somebody.",
            "group them by task and code on *DLQ and audit*, mend the cause, then replay or discard them.",
            Step.DEAD,
            [(now("queue_jobs", state="dead"), "dead")],
            "short",
            Marks(1, 100),
            Show.STAT,
            width=3,
            height=4,
        ),
        Panel(
            "Workers live of expected",
            "Workers that gave a sign of life within two leases, by those that there should be.",
            "`streamworker workers` shows who is left. Look at the log of the missing one: out of memory, "
            "a failed deploy, no Redis.",
            Step.WORKERS,
            [(share(top("workers_registered"), top("workers_expected")), "live")],
            "percentunit",
            Marks(1, 0.8, falling=True),
            Show.STAT,
            width=3,
            height=4,
        ),
        Panel(
            "Paused lanes",
            "Lanes that an operator has paused.",
            "`streamworker gates` says who paused it and why; `streamworker resume lane:NAME` lets it go on.",
            Step.GATES,
            [(now("queue_paused"), "paused")],
            "short",
            Marks(1, 2),
            Show.STAT,
            width=3,
            height=4,
        ),
        Panel(
            "Breakers open",
            "Dependencies whose breaker is open or tries again: jobs that use them wait.",
            "nothing is lost and nothing to be restarted. Ask the owner of the dependency; the breaker "
            "closes by itself.",
            Step.DEPENDENCY,
            [(f"count(({top('breaker_state', 'job', 'dependency')}) > 0) or vector(0)", "open")],
            "short",
            Marks(1, 2),
            Show.STAT,
            width=3,
            height=4,
        ),
        Panel(
            "Alerts",
            "Alerts of streamworker that fire in Prometheus.",
            "start with the critical one; its text names lane, task or dependency.",
            Step.LANE,
            [(f"count({FIRING}) or vector(0)", "firing")],
            "short",
            Marks(1, 3),
            Show.STAT,
            width=3,
            height=4,
        ),
    ],
)

WHICH = Section(
    "Which lane, which task, which dependency",
    [
        Panel(
            "Which alert",
            "Alerts that fire, with what they are about, and for how long each has been true.",
            "begin with what has lasted longest: the others may follow from it.",
            Step.LANE,
            [(worst(SINCE), "{{alert}} {{lane}}{{task}}{{dependency}}{{gate}} {{error_code}}")],
            "s",
            Marks(0, 0.001),
            Show.BARS,
            width=9,
            height=8,
            empty="none fires",
        ),
        Panel(
            "Which lane",
            "Age of the oldest job by the target of its lane: 1 is the target.",
            "open *Lane detail* for that lane. Other lanes are not touched by it.",
            Step.LANE,
            [
                (
                    worst(
                        share(
                            top("queue_oldest_job_age_seconds", "lane"),
                            top("lane_target_age_seconds", "lane"),
                        )
                    ),
                    "{{lane}}",
                )
            ],
            "percentunit",
            Marks(0.5, 1),
            Show.BARS,
            width=5,
            height=8,
            top=1,
            empty=UNKNOWN,
        ),
        Panel(
            "Which task",
            "Jobs a second that failed for good or are to be tried again, by task and error code.",
            "the code says whose fault it is: a code of a dependency, of the arguments, or of the handler.",
            Step.TASK,
            [
                (most(5, grown("job_failures", "task", "error_code")), "{{task}}: {{error_code}}"),
                (
                    most(5, grown("retries_scheduled", "task", "error_code")),
                    "{{task}}: {{error_code}}, retried",
                ),
            ],
            "ops",
            Marks(0.1, 1),
            Show.BARS,
            width=5,
            height=8,
            empty="none fails",
        ),
        Panel(
            "Which dependency",
            "The part of its calls that failed or timed out.",
            "do not add workers: they would call it more. Throttle or pause it, and wait; see the runbook.",
            Step.DEPENDENCY,
            [
                (
                    worst(
                        share(
                            grown("dependency_requests", "dependency", result="error|timeout"),
                            grown("dependency_requests", "dependency"),
                        )
                    ),
                    "{{dependency}}",
                )
            ],
            "percentunit",
            Marks(0.05, 0.2),
            Show.BARS,
            width=5,
            height=8,
            top=1,
            empty="none is called",
        ),
    ],
)

FLOW = Section(
    "Flow",
    [
        Panel(
            "Depth by lane",
            "Jobs that wait for their turn, also at a gate.",
            "a lane that only grows needs more slots or fewer jobs; one that grows while others are idle "
            "is paused or waits at a gate.",
            Step.LANE,
            [(now("queue_jobs", "lane", state="ready|parked"), "{{lane}}")],
            "short",
            Marks(1000, 10_000),
            stacked=True,
        ),
        Panel(
            "In against out",
            "Jobs a second that were enqueued, and that ended.",
            "where `in` stays above `out`, find out which producer it is, or add workers.",
            Step.LANE,
            [(grown("queue_enqueued"), "in"), (grown("jobs_processed", outcome=ENDED), "out")],
            "ops",
            Marks(5000, 10_000),
        ),
        Panel(
            "Oldest job by lane",
            "How long the oldest job of each lane has waited.",
            "compare it with the lane's target on *Which lane*.",
            Step.LANE,
            [(top("queue_oldest_job_age_seconds", "lane"), "{{lane}}")],
            "s",
            Marks(60, 600),
        ),
        Panel(
            "Outcomes",
            "What attempts came to, a second.",
            "failed: read the dead letters. retried: look at *Retries and dependencies*.",
            Step.TASK,
            [(grown("jobs_processed", "outcome"), "{{outcome}}")],
            "ops",
            Marks(5000, 10_000),
            stacked=True,
            colours={"succeeded": GOOD, "retried": UNSURE, "failed": BAD},
        ),
        Panel(
            "Wait and end to end",
            "How long jobs wait for their first start, and how long they take from enqueue to their end.",
            "long waits: slots or gates. Short waits and a long end to end: retries, or slow handlers.",
            Step.LANE,
            [
                (quantile(0.5, "job_wait_seconds"), "wait p50"),
                (quantile(0.95, "job_wait_seconds"), "wait p95"),
                (quantile(0.95, "job_end_to_end_seconds"), "end to end p95"),
            ],
            "s",
            Marks(10, 60),
        ),
        Panel(
            "Admissions",
            "What became of enqueues, a second, by decision.",
            "rejected or deferred: a lane is over its limit. Producers are told when to try again.",
            Step.ADMISSION,
            [(grown("queue_admissions", "decision"), "{{decision}}")],
            "ops",
            Marks(5000, 10_000),
            stacked=True,
            colours={"accepted": GOOD, "deferred": UNSURE, "rejected": BAD, "conflict": "orange"},
        ),
    ],
)

ENGINE = Section(
    "Workers and Redis",
    [
        Panel(
            "Slots",
            "Slots in use, by lane, and how many each could fill.",
            "all in use and jobs wait: add workers, unless a dependency is what they wait for.",
            Step.WORKERS,
            [
                (now("worker_slots", "lane", state="in_use"), "{{lane}} in use"),
                (now("worker_slots", "lane", state="capacity"), "{{lane}} at most"),
            ],
            "short",
            Marks(1000, 10_000),
            limits="/ at most$/",
            whole=True,
        ),
        Panel(
            "Redis calls p95",
            "How long calls take, from the worker's side: `exchange` is what claims and settles jobs.",
            "Redis is overloaded, swaps, or is far away: `redis-cli --latency`, `SLOWLOG GET`. By script on "
            "*Retries and dependencies*.",
            Step.REDIS,
            [
                (quantile(0.95, "redis_call_duration_seconds", script="exchange"), "exchange"),
                (quantile(0.95, "redis_call_duration_seconds"), "all scripts"),
            ],
            "s",
            Marks(0.05, 0.5),
        ),
        Panel(
            "Event loop lag p99",
            "How late the workers' event loops are.",
            'a handler blocks the loop; the log names it. Make it a plain function, or `run_in="process"`.',
            Step.LOOP,
            [(quantile(0.99, "event_loop_lag_seconds"), "lag")],
            "s",
            Marks(0.1, 1),
        ),
    ],
)

BOARD = Board(
    "streamworker-overview",
    "streamworker: overview",
    "Start here when you are called: from the top row to the lane, task or dependency, and from each "
    "panel to the runbook.",
    [AT_A_GLANCE, WHICH, FLOW, ENGINE],
)
