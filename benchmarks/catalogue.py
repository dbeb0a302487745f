"""The contenders: what they are, and how much of the same work each gets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ALL_SLOTS = (1, 32, 256)


class Runtime(StrEnum):
    """What a contender's worker and client run on."""

    HERE = "here"  # the interpreter and packages that run the harness: the tree being worked on
    PYTHON = "python"  # a virtualenv of its own
    NODE = "node"  # a node_modules of its own


class Store(StrEnum):
    """Where a contender's jobs are."""

    REDIS = "redis"
    POSTGRES = "postgres"
    BOTH = "both"  # in Redis, and mirrored to Postgres


@dataclass(frozen=True, slots=True)
class Contender:
    """One job queue with one setting of it."""

    name: str  # module of its adapter and file of its requirements; `@variant` is cut off
    variant: str
    runtime: Runtime
    #: Jobs of a long throughput run at 32 and more slots: some seconds of work.
    jobs: int
    #: What it keeps of a finished job, which costs it time: its default unless the variant says otherwise.
    keeps: str
    #: Jobs in one call of its batch API; None: it has none.
    chunk: int | None = None
    slots: tuple[int, ...] = ALL_SLOTS
    most_slots: int = 10_000
    store: Store = Store.REDIS
    #: The oldest Python that it runs on, if that is not everybody's.
    python: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        return f"{self.name}@{self.variant}" if self.variant else self.name


_CATALOGUE = (
    Contender(
        "streamworker", "", Runtime.HERE, 100_000, "record and result, 15 min; every move in the log", 500
    ),
    Contender(
        "streamworker", "bare", Runtime.HERE, 100_000, "as streamworker, but no metrics are counted", 500
    ),
    Contender(
        "streamworker", "logs", Runtime.HERE, 100_000, "as streamworker, and a log line for each move", 500
    ),
    Contender("bullmq_node", "", Runtime.NODE, 100_000, "the job's hash, for ever", 500),
    Contender("taskiq", "stream", Runtime.PYTHON, 20_000, "nothing"),
    Contender("taskiq", "stream_results", Runtime.PYTHON, 20_000, "results, 10 min"),
    Contender("arq", "", Runtime.PYTHON, 10_000, "results, 1 h"),
    Contender("saq", "", Runtime.PYTHON, 10_000, "the job, 10 min"),
    Contender("dramatiq", "", Runtime.PYTHON, 40_000, "nothing"),
    # Each of its threads takes a connection of a pool of 100: beyond that, workers fail and jobs are lost.
    Contender("huey", "", Runtime.PYTHON, 40_000, "results other than None", slots=(1, 32), most_slots=96),
    Contender("celery", "threads", Runtime.PYTHON, 10_000, "nothing"),
    Contender("rq", "", Runtime.PYTHON, 4_000, "results, 500 s", 500, slots=(1,), most_slots=1),
    Contender(
        "streamworker",
        "mirror",
        Runtime.HERE,
        60_000,
        "every move, payload and result in Postgres, 30 days",
        500,
        slots=(256,),
        store=Store.BOTH,
    ),
    Contender(
        "procrastinate", "", Runtime.PYTHON, 5_000, "the job, for ever", 500, (256,), store=Store.POSTGRES
    ),
    Contender(
        "pgqueuer", "", Runtime.PYTHON, 10_000, "a log of states, for ever", 500, (256,), store=Store.POSTGRES
    ),
    Contender(
        "pgqueuer",
        "batches",
        Runtime.PYTHON,
        40_000,
        "a log of states, for ever",
        500,
        (256,),
        store=Store.POSTGRES,
    ),
    Contender(
        "oban",
        "",
        Runtime.PYTHON,
        20_000,
        "the job, 1 day",
        500,
        (256,),
        store=Store.POSTGRES,
        python=(3, 12),
    ),
)

CONTENDERS = {contender.label: contender for contender in _CATALOGUE}
#: What runs when nobody names any: no second setting of the same queue.
_SECOND = {"streamworker@bare", "streamworker@logs", "taskiq@stream_results", "pgqueuer@batches"}
USUAL = tuple(label for label in CONTENDERS if label not in _SECOND)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long each scenario takes."""

    share: float  # of a contender's `jobs`
    drain_seconds: float  # at the most, for a throughput run
    enqueue_seconds: float  # at the most, for each style
    paced_jobs: int  # of the latency run, one each 5 ms
    depths: tuple[int, ...]


SHORT = Effort(share=0.25, drain_seconds=4, enqueue_seconds=1.5, paced_jobs=600, depths=(10_000,))
LONG = Effort(share=1, drain_seconds=15, enqueue_seconds=4, paced_jobs=2_000, depths=(1_000, 100_000))
