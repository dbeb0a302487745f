"""The catalogue of Redis keys: every key that streamworker writes, its type, lifetime and owner.

Keys of one shard share the hash tag `{<namespace>:<shard>}`, so that each script touches one cluster slot
(R38). `lua/fragments/keys.lua` derives the same names from the tag; a test compares the two, and the leak
tests use `is_live_state` to tell state that may stay from a key that somebody forgot to let expire.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamworker.core.errors import InvalidArgument

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}\Z")

#: Suffix of a lane's streams by the kind letter that a record's `entry` carries.
STREAM_SUFFIX = {"a": "", "r": ":ready", "q": ":quarantine"}
#: Suffix of the stream that holds a lane's part of the backlog, whose kind is `b`. It has no group.
BACKLOG_SUFFIX = ":backlog"
#: The consumer group of every lane stream.
GROUP = "workers"
#: Begins a field of `policies` for each task that commits effects (D14).
EFFECTS = "effects:"


@dataclass(frozen=True, slots=True)
class KeySpec:
    """One row of the catalogue."""

    pattern: str
    type: str
    ttl: str
    owner: str
    holds: str

    @property
    def live(self) -> bool:
        """Whether the key may exist without a TTL."""
        return self.ttl.startswith("none")


CATALOGUE: tuple[KeySpec, ...] = (
    KeySpec("lane:<lane>", "stream", "none", "enqueue", "arrivals: id, env"),
    KeySpec("lane:<lane>:ready", "stream", "none", "settle, promote", "jobs whose wait is over: id, env"),
    KeySpec("lane:<lane>:quarantine", "stream", "none", "recovery", "jobs with strikes: id, env"),
    KeySpec("lane:<lane>:backlog", "stream", "none", "enqueue, drain",
            "jobs meant for the lane that may wait: id, env"),
    KeySpec("job:<id>", "string", "none while open, then its retention", "every script", "the record"),
    KeySpec("body:<id>", "hash", "none while open, then its retention", "every script",
            "envelope while parked, long result, error text"),
    KeySpec("key:<key id>", "string", "none while open, then the window", "enqueue, finish",
            "job id, fingerprint, final status"),
    KeySpec("window:<name>", "string", "the window's", "coalesce", "who has opened it, and how many it has"),
    KeySpec("collected:<id>", "set", "the window's", "coalesce", "marks of the items that a job has got"),
    KeySpec("merged:<id>", "string", "60 s", "coalesce", "the job that an event was merged into"),
    KeySpec("merged_keys:<id>", "hash", "none", "coalesce, finish",
            "keys that were merged into a job: key id -> fingerprint, window"),
    KeySpec("schedule", "zset", "none", "settle, promote", "due time (ms) -> job id"),
    KeySpec("deadlines", "zset", "none", "enqueue, finish", "deadline (ms) -> job id"),
    KeySpec("lane:<lane>:turn:<tenant>", "stream", "none", "enqueue, promote, claim",
            "jobs of one tenant that wait behind the turnstile: id, env"),
    KeySpec("turnstile", "hash", "none", "enqueue, claim", "who stands and waits, by lane and tenant"),
    KeySpec("gate:<name>", "zset", "none", "claim, settle",
            "holders of a gate: time of the claim (ms) -> job id; minus the place while it is only granted"),
    KeySpec("waiting:<lane>:<gate>", "zset", "none", "claim, settle, wake", "who waits: place -> job id"),
    KeySpec("waiting", "hash", "none", "claim, settle, wake", "gates with waiters: how many in which lane"),
    KeySpec("bucket:<name>", "string", "a minute beyond being full", "claim",
            "tokens of a rate: level, time, period"),
    KeySpec("lock:<name>", "string", "the lock's", "lock/acquire", "a handler's lock: holder, token"),
    KeySpec("cache:<name>", "string", "the entry's", "cache/keep", "a cached value: version, checksum, JSON"),
    KeySpec("loading:<name>", "string", "10 s", "cache/ask", "who loads the value that others wait for"),
    KeySpec("pauses", "string", "none", "tune, wake", "what is paused: scope, state, until, who, since, why"),
    KeySpec("breakers", "string", "none", "exchange, wake, tune",
            "breakers that are not closed: state, since, until, trips, trials, ramp, who, why"),
    KeySpec("breaker:dependency:<name>", "string", "two windows", "exchange",
            "calls of a dependency in the last window: half of it, ok, failed, and the half before"),
    KeySpec("timers", "zset", "none", "claim, settle, wake",
            "when a gate may open or a grant goes back (ms)"),
    KeySpec("dlq", "stream", "none", "finish, replay, discard", "dead letters"),
    KeySpec("events", "stream", "none (trimmed by the keeper at its bound in bytes)", "every script",
            "the transition log"),
    KeySpec("stats", "hash", "none", "every script", "counters per lane and task; the log's sequence"),
    KeySpec("depths", "hash", "none", "every script",
            "who waits and runs by lane and task; of `queued` what `enqueued` of `stats` does not say"),
    KeySpec("fence", "string", "none", "claim", "the counter behind all fences"),
    KeySpec("sweep", "hash", "none", "recover", "last sweep's time, hold and cursors"),
    KeySpec("elect:<role>", "string", "seconds", "keeper", "hint: who does a keeper's work"),
    KeySpec("crons", "hash", "none", "cron, recall",
            "each cron's last tick (ms) and the job of it, since when its schedule holds (ms), and that"),
    KeySpec("cron:<name>:<tick>", "string", "a minute to a day", "cron",
            "the job of one tick, which so counts once"),
    KeySpec("worker:<id>", "hash", "liveness", "session, heartbeat", "session number and what the worker is"),
    KeySpec("workers", "hash", "none", "session, forget",
            "where to look for workers: their ids, some of them gone"),
    KeySpec("policies", "hash", "none", "tune, declare, mirror, pressure",
            "what is set at run time: limits, throttles, drain; the lanes' pressure; the mirror's marker"),
    KeySpec("settings", "hash", "none", "tune, wake",
            "what operators have set: until, who, since, value, why; and what holds again after that"),
    KeySpec("changes", "list", "none (the last 200)", "tune",
            "what operators have changed, newest first: id, time, who, what, and what stood before"),
    KeySpec("meta", "hash", "none", "worker, publish",
            "schema, shard count, what tasks declare (no shard in its tag)"),
    KeySpec("done:<id>", "list", "60 s", "finish", "wakes result() waiters"),
)  # fmt: skip

_PLACEHOLDER = re.compile(r"<[^>]+>")


def _matcher(spec: KeySpec) -> re.Pattern[str]:
    parts = [re.escape(part) for part in _PLACEHOLDER.split(spec.pattern)]
    return re.compile(r"\{[^}]*\}:" + ".+".join(parts) + r"\Z", re.DOTALL)


_LIVE = tuple(_matcher(spec) for spec in CATALOGUE if spec.live)
_ALL = tuple(_matcher(spec) for spec in CATALOGUE)


def is_known(key: str) -> bool:
    """Whether the key is in the catalogue."""
    return any(matcher.match(key) for matcher in _ALL)


def is_live_state(key: str) -> bool:
    """Whether the catalogue lets this key exist without a TTL."""
    return any(pattern.match(key) for pattern in _LIVE)


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of one shard's keys."""

    namespace: str
    shard: int = 0

    def __post_init__(self) -> None:
        if not _NAMESPACE.match(self.namespace):
            raise InvalidArgument(
                "namespace",
                self.namespace,
                "use 1 to 48 letters, digits, '.', '_' or '-', beginning with a letter or digit",
            )

    @property
    def tag(self) -> str:
        """The hash tag, which the scripts receive as their one declared key."""
        return f"{{{self.namespace}:{self.shard}}}"

    @property
    def namespace_tag(self) -> str:
        """The hash tag of what holds for all shards."""
        return f"{{{self.namespace}}}"

    @property
    def meta(self) -> str:
        """What holds for the whole namespace, all shards."""
        return f"{self.namespace_tag}:meta"

    def stream(self, lane: str, kind: str = "a", tenant: str = "") -> str:
        """A lane's stream: `a` arrivals, `r` ready, `q` quarantine, `b` backlog, `t` a tenant's turnstile."""
        if kind == "t":
            return f"{self.tag}:lane:{lane}:turn:{tenant}"
        return f"{self.tag}:lane:{lane}{BACKLOG_SUFFIX if kind == 'b' else STREAM_SUFFIX[kind]}"

    def job(self, job_id: str) -> str:
        return f"{self.tag}:job:{job_id}"

    def body(self, job_id: str) -> str:
        return f"{self.tag}:body:{job_id}"

    def key(self, key_id: str) -> str:
        return f"{self.tag}:key:{key_id}"

    def done(self, job_id: str) -> str:
        return f"{self.tag}:done:{job_id}"

    def worker(self, worker: str) -> str:
        return f"{self.tag}:worker:{worker}"

    def elect(self, role: str) -> str:
        return f"{self.tag}:elect:{role}"

    def gate(self, name: str) -> str:
        """Who holds a gate."""
        return f"{self.tag}:gate:{name}"

    def waiters(self, lane: str, gate: str) -> str:
        """Who waits at a gate, of one lane."""
        return f"{self.tag}:waiting:{lane}:{gate}"

    def bucket(self, name: str) -> str:
        """The tokens of a rate."""
        return f"{self.tag}:bucket:{name}"

    def cache(self, name: str) -> str:
        """A cached value."""
        return f"{self.tag}:cache:{name}"

    def loading(self, name: str) -> str:
        """Who loads a value."""
        return f"{self.tag}:loading:{name}"

    def lock(self, name: str) -> str:
        """A handler's lock."""
        return f"{self.tag}:lock:{name}"

    @property
    def waiting(self) -> str:
        return f"{self.tag}:waiting"

    @property
    def turnstile(self) -> str:
        return f"{self.tag}:turnstile"

    @property
    def pauses(self) -> str:
        return f"{self.tag}:pauses"

    @property
    def breakers(self) -> str:
        return f"{self.tag}:breakers"

    def breaker(self, dependency: str) -> str:
        """How the calls of a dependency went lately."""
        return f"{self.tag}:breaker:dependency:{dependency}"

    @property
    def timers(self) -> str:
        return f"{self.tag}:timers"

    @property
    def policies(self) -> str:
        return f"{self.tag}:policies"

    @property
    def settings(self) -> str:
        return f"{self.tag}:settings"

    @property
    def changes(self) -> str:
        return f"{self.tag}:changes"

    @property
    def crons(self) -> str:
        return f"{self.tag}:crons"

    @property
    def schedule(self) -> str:
        return f"{self.tag}:schedule"

    @property
    def deadlines(self) -> str:
        return f"{self.tag}:deadlines"

    @property
    def dlq(self) -> str:
        return f"{self.tag}:dlq"

    @property
    def events(self) -> str:
        return f"{self.tag}:events"

    @property
    def stats(self) -> str:
        return f"{self.tag}:stats"

    @property
    def depths(self) -> str:
        return f"{self.tag}:depths"

    @property
    def workers(self) -> str:
        return f"{self.tag}:workers"

    @property
    def fence(self) -> str:
        return f"{self.tag}:fence"

    @property
    def sweep(self) -> str:
        return f"{self.tag}:sweep"
