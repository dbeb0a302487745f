"""What is tried again, and what the dependencies have to do with it."""

from __future__ import annotations

from grafana.source.panels import NOTHING, Board, Marks, Panel, Section, Show, Step
from grafana.source.promql import grown, mean, quantile, seen, share, top

RETRIES = Section(
    "Retries",
    [
        Panel(
            "Retries by task",
            "Retries that were scheduled, a second.",
            "a storm of one task: look at its code beside, then at the dependency that it uses.",
            Step.RETRIES,
            [(seen(grown("retries_scheduled", "task")), "{{task}}")],
            "ops",
            Marks(0.1, 10),
            empty=NOTHING,
        ),
        Panel(
            "Retries by error code",
            "The same by error code.",
            "a code that cannot get better by trying should be persistent; `streamworker retries` stops "
            "one at once.",
            Step.RETRIES,
            [(seen(grown("retries_scheduled", "error_code")), "{{error_code}}")],
            "ops",
            Marks(0.1, 10),
            empty=NOTHING,
        ),
        Panel(
            "Mean attempt",
            "Which attempt it is that starts, on average: 1 is a world without retries.",
            "most work is repeated work: each job costs as many starts.",
            Step.RETRIES,
            [(mean("execution_attempt", "task"), "{{task}}")],
            "short",
            Marks(1.2, 1.5),
            bottom=1,
        ),
        Panel(
            "Success by attempt",
            "Of the attempts with this number that ended, the part that succeeded.",
            "later attempts that never succeed are not worth their time: fewer of them, or a persistent "
            "error.",
            Step.RETRIES,
            [
                (
                    share(grown("attempts", "attempt", outcome="succeeded"), grown("attempts", "attempt")),
                    "attempt {{attempt}}",
                )
            ],
            "percentunit",
            Marks(0.9, 0.5, falling=True),
            top=1,
        ),
        Panel(
            "Attempts",
            "How many starts there were of each attempt.",
            "the upper rows fill up when something does not recover between attempts.",
            Step.RETRIES,
            [(grown("execution_attempt_bucket", "le", how="increase"), "{{le}}")],
            "short",
            Marks(100, 1000),
            Show.HEAT,
        ),
        Panel(
            "Failed for good, by code",
            "Jobs a second that became dead letters.",
            "read one of them: `streamworker dlq show ID`.",
            Step.DEAD,
            [(seen(grown("job_failures", "error_code")), "{{error_code}}")],
            "ops",
            Marks(0.1, 1),
            empty=NOTHING,
        ),
    ],
)

DEPENDENCIES = Section(
    "Dependencies",
    [
        Panel(
            "Errors and time-outs",
            "The part of its calls that failed or timed out.",
            "throttle or pause it, do not add workers: they would call it more.",
            Step.DEPENDENCY,
            [
                (
                    share(
                        grown("dependency_requests", "dependency", "result", result="error|timeout"),
                        grown("dependency_requests", "dependency"),
                        match="on (dependency) group_left () ",
                    ),
                    "{{dependency}} {{result}}",
                )
            ],
            "percentunit",
            Marks(0.05, 0.2),
            top=1,
        ),
        Panel(
            "Calls p95",
            "How long calls take.",
            "slow calls hold slots: the lane fills though nothing fails. Lower its `timeout` or its "
            "concurrency.",
            Step.DEPENDENCY,
            [(quantile(0.95, "dependency_duration_seconds", "dependency"), "{{dependency}}")],
            "s",
            Marks(1, 5),
        ),
        Panel(
            "Breakers",
            "The breaker of each dependency that has one.",
            "jobs that use it wait without being charged. It closes by itself once probes succeed.",
            Step.DEPENDENCY,
            [(top("breaker_state", "dependency"), "{{dependency}}")],
            "short",
            Marks(1, 2),
            top=2,
            empty="no breaker",
            names=("closed", "half open", "open"),
        ),
        Panel(
            "Retries against dependency errors",
            "If both lines rise together, the dependency is the cause.",
            "look at the dependency, not at the tasks.",
            Step.DEPENDENCY,
            [
                (grown("retries_scheduled"), "retries"),
                (
                    grown("dependency_requests", "dependency", result="error|timeout"),
                    "errors of {{dependency}}",
                ),
            ],
            "ops",
            Marks(1, 10),
        ),
        Panel(
            "Tokens left",
            "Tokens in each limiter's bucket, by what it holds.",
            "at 0 the limit is what slows jobs down: raise it if the other side bears it (`streamworker "
            "limits`).",
            Step.GATES,
            [
                (
                    share(top("token_bucket_tokens", "limiter"), top("token_bucket_capacity", "limiter")),
                    "{{limiter}}",
                )
            ],
            "percentunit",
            Marks(0.2, 0.05, falling=True),
            top=1,
        ),
        Panel(
            "Limiter decisions",
            "How often rates and concurrencies let a job pass, or made it wait, a second.",
            "mostly waiting: the limit is below what comes in.",
            Step.GATES,
            [(grown("limiter_decisions", "limiter", "decision"), "{{limiter}} {{decision}}")],
            "ops",
            Marks(5000, 10_000),
        ),
        Panel(
            "Cache hits",
            "Of the look-ups in each cache, the part that found what it looked for.",
            "a cold or lost cache: the load goes to what is behind it. No job fails of it.",
            Step.DEPENDENCY,
            [
                (
                    share(
                        grown("cache_requests", "cache", result="hit"),
                        grown("cache_requests", "cache", result="hit|miss|waited|corrupt|error"),
                    ),
                    "{{cache}}",
                )
            ],
            "percentunit",
            Marks(0.8, 0.5, falling=True),
            width=12,
            top=1,
        ),
        Panel(
            "Skips",
            "Jobs a second that had nothing to do and said so.",
            "a producer that asks for much in vain; no harm otherwise.",
            Step.TASK,
            [(seen(grown("job_skips", "task")), "{{task}}")],
            "ops",
            Marks(100, 1000),
            width=12,
            empty=NOTHING,
        ),
    ],
)

REDIS = Section(
    "Redis",
    [
        Panel(
            "Errors of Redis",
            "Lost connections and refused commands, a second.",
            "`streamworker doctor` says what is wrong with the server.",
            Step.REDIS,
            [(grown("redis_errors", "kind"), "{{kind}}")],
            "ops",
            Marks(0.1, 1),
        ),
        Panel(
            "Calls by script p95",
            "How long each script takes, from the worker's side.",
            "all of them: the server or the network. `exchange` alone: very many jobs, or gates with very "
            "many waiters. Others are housekeeping: no job waits for them.",
            Step.REDIS,
            [(quantile(0.95, "redis_call_duration_seconds", "script"), "{{script}}")],
            "s",
            Marks(0.05, 0.5),
            width=16,
        ),
    ],
)

BOARD = Board(
    "streamworker-retries",
    "streamworker: retries and dependencies",
    "What is tried again, why, and which dependency is behind it.",
    [RETRIES, DEPENDENCIES, REDIS],
)
