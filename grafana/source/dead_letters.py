"""What failed for good, what operators did, and how far the durable record is."""

from __future__ import annotations

from grafana.source.panels import (
    BAD,
    GOOD,
    NOTHING,
    SOURCE,
    UNSURE,
    Board,
    Json,
    Marks,
    Panel,
    Section,
    Show,
    Step,
)
from grafana.source.promql import grown, most, now, quantile, seen, top

DEAD = Section(
    "Dead letters",
    [
        Panel(
            "Waiting by task",
            "Jobs that failed for good and wait for somebody.",
            "mend the cause first, then `streamworker dlq replay --task NAME --dry-run`.",
            Step.DEAD,
            [(seen(now("queue_jobs", "task", state="dead")), "{{task}}")],
            "short",
            Marks(1, 100),
            stacked=True,
            empty=NOTHING,
        ),
        Panel(
            "Inflow by task and code",
            "Dead letters a second.",
            "a surge of one code is one cause: read one letter, not all.",
            Step.DEAD,
            [(seen(grown("queue_dead_lettered", "task", "error_code")), "{{task}}: {{error_code}}")],
            "ops",
            Marks(0.1, 1),
            empty=NOTHING,
        ),
        Panel(
            "Replayed",
            "Dead letters a second that operators sent back.",
            "what is replayed and comes back was not mended: stop replaying.",
            Step.DEAD,
            [(seen(grown("queue_replayed", "task")), "{{task}}")],
            "ops",
            Marks(100, 1000),
            empty=NOTHING,
        ),
        Panel(
            "Top codes",
            "Dead letters of the time shown, by task and code.",
            "begin with the first.",
            Step.DEAD,
            [
                (
                    most(
                        10,
                        grown(
                            "queue_dead_lettered",
                            "task",
                            "error_code",
                            over="$__range",
                            look="1m",
                            how="increase",
                        ),
                    ),
                    "{{task}}: {{error_code}}",
                )
            ],
            "short",
            Marks(1, 100),
            Show.BARS,
            width=24,
            height=7,
            empty=NOTHING,
        ),
    ],
)

MIRROR = Section(
    "Mirror in Postgres",
    [
        Panel(
            "Mirror lag",
            "How long the oldest move that is not in Postgres has waited.",
            "is a mirror running, and Postgres up? Jobs run on meanwhile; the log grows in Redis.",
            Step.MIRROR,
            [(top("mirror_lag_seconds"), "lag")],
            "s",
            Marks(10, 60),
        ),
        Panel(
            "Moves to be mirrored",
            "Entries of the log that are not in Postgres yet.",
            "at the log's bound enqueues are refused: bring Postgres or the mirror back before that.",
            Step.MIRROR,
            [(top("mirror_lag_events"), "entries")],
            "short",
            Marks(10_000, 100_000),
        ),
        Panel(
            "Rows written",
            "Rows a second, by table.",
            "none while jobs run: the mirror stands by, or cannot write. Its log says why.",
            Step.MIRROR,
            [(grown("mirror_rows_written", "table"), "{{table}}")],
            "ops",
            Marks(50_000, 100_000),
        ),
        Panel(
            "Batch p95",
            "From the first statement of a batch to its commit.",
            "Postgres is slow: its disk, its locks, a vacuum.",
            Step.MIRROR,
            [(quantile(0.95, "mirror_batch_duration_seconds"), "batch")],
            "s",
            Marks(0.5, 5),
        ),
        Panel(
            "Errors of the mirror",
            "What went wrong, by kind, in the window.",
            "`row` and `conflict` are kept aside in `mirror_refused` and `mirror_conflicts`; `gap` means "
            "that Redis lost moves.",
            Step.MIRROR,
            [(seen(grown("mirror_errors", "kind", how="increase")), "{{kind}}")],
            "short",
            Marks(1, 10),
            empty=NOTHING,
        ),
        Panel(
            "Mirrors by state",
            "What each mirror does: one writes, others stand by.",
            "nobody is `mirroring`: all of them stand by, or are cut off from Postgres or Redis.",
            Step.MIRROR,
            [(seen(now("mirror_state", "state")), "{{state}}")],
            "short",
            Marks(10, 20),
            stacked=True,
            empty="no mirror",
            colours={"mirroring": GOOD, "standby": "blue", "postgres_away": BAD, "redis_away": BAD},
            whole=True,
        ),
    ],
)

OUTBOX = Section(
    "Outbox",
    [
        Panel(
            "Outbox lag",
            "Age of the oldest committed request that Redis has not heard of.",
            "is a relay running? `streamworker outbox relay`. Requests are not lost while they wait.",
            Step.MIRROR,
            [(top("outbox_lag_seconds"), "lag")],
            "s",
            Marks(10, 60),
            width=6,
            empty="no outbox",
        ),
        Panel(
            "Outbox rows waiting",
            "Committed requests that a relay has yet to tell Redis.",
            "more come in than the relay publishes, or it is cut off from Redis: `streamworker outbox list`.",
            Step.MIRROR,
            [(top("outbox_pending_rows"), "rows")],
            "short",
            Marks(1000, 10_000),
            width=6,
            empty="no outbox",
            whole=True,
        ),
        Panel(
            "Outbox rows put aside",
            "Committed requests that Redis does not take: no relay tries them again.",
            "`streamworker outbox list --refused` has the reasons. Mend them, then `outbox retry`.",
            Step.MIRROR,
            [(top("outbox_refused_rows"), "rows")],
            "short",
            Marks(1, 10),
            width=6,
            empty="no outbox",
            whole=True,
        ),
        Panel(
            "Relayed",
            "Requests a second: Redis has them, they were put aside, or it did not take them for now.",
            "what is refused is kept with its reason (`streamworker outbox list --refused`) and waits for "
            "somebody; what is rejected is tried again.",
            Step.MIRROR,
            [(grown("outbox_relayed", "result"), "{{result}}")],
            "ops",
            Marks(5000, 10_000),
            width=6,
            empty="no relay",
            colours={"published": GOOD, "rejected": UNSURE, "refused": BAD},
        ),
    ],
)


def _mark(name: str, colour: str, query: str, text: str) -> Json:
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": query,
        "titleFormat": name,
        "textFormat": text,
    }


POSTGRES: Json = {
    "name": "postgres",
    "label": "Postgres",
    "type": "datasource",
    "query": "grafana-postgresql-datasource",
    "regex": "",
    "multi": False,
    "includeAll": False,
    "refresh": 1,
    "current": {},
    "options": [],
    "hide": 0,
    "skipUrlSync": False,
}

#: What operators did, by the numbers that it changes. In Postgres there is who did it and why, for those that
#: have a mirror: that one is off until it is switched on, since without Postgres it would only fail.
ANNOTATIONS: list[Json] = [
    _mark(
        "Replay",
        "blue",
        f"{grown('queue_replayed', 'task', over='1m', how='increase')} > 0",
        "dead letters of {{task}} were replayed",
    ),
    _mark("Paused", "orange", f"{top('queue_paused', 'lane')} > 0", "{{lane}} is paused"),
    {
        "name": "Operators",
        "datasource": {"type": "grafana-postgresql-datasource", "uid": "${postgres}"},
        "enable": False,
        "hide": False,
        "iconColor": "purple",
        "rawQuery": "SELECT at AS time, actor || ': ' || action || ' ' || subject AS text, detail AS tags\n"
        "FROM streamworker.operator_actions WHERE $__timeFilter(at) ORDER BY at",
    },
]

BOARD = Board(
    "streamworker-dead-letters",
    "streamworker: DLQ and audit",
    "What failed for good, what operators did, and how far the durable record is.",
    [DEAD, MIRROR, OUTBOX],
    [POSTGRES],
    ANNOTATIONS,
)
