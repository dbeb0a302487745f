"""The values that travel between producer, Redis and worker: envelope, claim, candidate, record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from streamworker.core.states import TERMINAL, Status


# Envelope and Claim are not frozen: `object.__setattr__` for each field took a fifth of a worker's time.
@dataclass(slots=True)
class Envelope:
    """What a producer sends and a handler needs; opaque bytes to the scripts (R34).

    On the wire a JSON object with one-letter names: `t` task, `a` arguments by name, `k` the key as the
    user gave it, `n` tenant, `c` correlation id, `s` the tick of a cron in ms, `d` the delay in ms,
    `p` the producer's place in a trace, as a W3C `traceparent`.
    """

    task: str
    args: dict[str, Any]
    key: str | None = None
    tenant: str | None = None
    correlation_id: str | None = None
    tick: int | None = None
    delay_ms: int = 0
    trace: str | None = None

    @classmethod
    def decode(cls, data: bytes) -> Envelope:
        """Raises ValueError when the bytes are no envelope."""
        raw = orjson.loads(data)
        try:
            task, args = raw["t"], raw["a"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"an envelope needs `t` and `a`, this one is {data[:80]!r}") from error
        if not isinstance(task, str) or not isinstance(args, dict):
            raise ValueError(f"an envelope needs a name in `t` and an object in `a`, not {data[:80]!r}")
        if len(raw) == 2:
            return cls(task, args)
        get = raw.get
        return cls(task, args, get("k"), get("n"), get("c"), get("s"), get("d", 0), get("p"))


def encode_envelope(
    task: str,
    args: bytes,
    *,
    key: str | None = None,
    tenant: str | None = None,
    correlation_id: str | None = None,
    tick: int | None = None,
    delay_ms: int = 0,
    trace: str | None = None,
) -> bytes:
    """An envelope around arguments that are encoded already, so that they travel bit for bit."""
    if (
        not delay_ms
        and key is None
        and tenant is None
        and correlation_id is None
        and trace is None
        and tick is None
    ):
        return b'{"t":%b,"a":%b}' % (orjson.dumps(task), args)
    raw: dict[str, Any] = {"t": task}
    if key is not None:
        raw["k"] = key
    if tenant is not None:
        raw["n"] = tenant
    if correlation_id is not None:
        raw["c"] = correlation_id
    if tick is not None:
        raw["s"] = tick
    if delay_ms:
        raw["d"] = delay_ms
    if trace is not None:
        raw["p"] = trace
    raw["a"] = orjson.Fragment(args)  # last: `coalesce` adds to the end
    return orjson.dumps(raw)


#: What stands in place of the gates of a claim that is to be buried, before what it is to be ended by.
_BURY = "bury "


@dataclass(slots=True)
class Claim:
    """A worker's right to run one attempt: job, attempt and fence."""

    job_id: str
    fence: int
    attempt: int  # 1-based
    starts: int
    strikes: int
    epoch: int
    lane: str
    kind: str  # of the stream: a arrivals, r ready, q quarantine
    entry: str
    age_ms: int  # since enqueue
    deadline_in_ms: int | None  # until the job's deadline; None: it has none
    unknown_age_ms: int | None  # since a worker first handed it back as an unknown task
    envelope: bytes
    gates: str = ""  # what it passed, as it stands in the record
    bury: bool = False  # not to be run: look for its committed effect, and settle (D14)
    retried: bool = False  # it was retry_scheduled, else queued
    cause: str = ""  # of a burial: reason, error class and code that the job ends by if it had no effect

    @classmethod
    def parse(cls, head: bytes, job_id: bytes, envelope: bytes) -> Claim:
        """From the three values of the claim script: the head is the state token and what follows it."""
        words = head.decode().split(" ", 14)
        gates = words.pop() if len(words) > 14 else ""
        _, attempt, starts, strikes, _, epoch, fence, _, lane, kind, entry, age, past, unknown = words
        claim = cls(
            job_id.decode(),
            int(fence),
            int(attempt),
            int(starts),
            int(strikes),
            int(epoch),
            lane,
            kind,
            entry,
            0 if age == "-" else int(age),
            None if past == "-" else -int(past),
            None if unknown == "-" else int(unknown),
            envelope,
        )
        if gates.startswith(_BURY):
            claim.bury, claim.cause = True, gates.removeprefix(_BURY)
        elif gates:
            claim.gates = gates
        if kind <= "Z":  # a capital letter
            claim.kind, claim.retried = kind.lower(), True
        return claim


@dataclass(frozen=True, slots=True)
class Candidate:
    """A claim whose lease ran out, as the sweep judged it; its fate is decided in Python."""

    job_id: str
    fence: int
    lease_until: int
    version: int
    status: Status
    attempt: int
    starts: int
    strikes: int
    lane: str
    task: str
    worker: str

    @classmethod
    def parse(cls, line: bytes) -> Candidate:
        words = line.decode().split(" ")
        job_id, fence, lease, version, status, attempt, starts, strikes, lane, task, worker = words
        return cls(
            job_id,
            int(fence),
            int(lease),
            int(version),
            Status(status),
            int(attempt),
            int(starts),
            int(strikes),
            lane,
            task,
            worker,
        )


#: The numbers of the state token that the first line of a job that never moved leaves out.
_NEW = ("0", "0", "0", "1", "0", "0", "0")
#: The words of a record's first line after the state token, as fields.
_PLACE = ("en", "la", "ta", "at")


@dataclass(frozen=True, slots=True)
class Record:
    """The job's record as Redis holds it: twelve words, then a line `name=value` for each field that is set.

    The first line of a job that never moved has five. `fields` has the other lines and, under names of their
    own, the words after the state token: `en` the entry as `kind:id`, `la` the lane, `ta` the task, `at` the
    time of enqueue. Times are ms since the epoch, by Redis's clock.
    """

    job_id: str
    status: Status
    attempt: int
    starts: int
    strikes: int
    version: int
    epoch: int
    fence: int  # 0: nobody holds it
    lease_until: int  # 0: nobody holds it
    fields: dict[str, str] = field(repr=False)

    @classmethod
    def parse(cls, job_id: str, raw: bytes) -> Record:
        """Raises ValueError when the first line cannot be read."""
        first, *rest = raw.decode("utf-8", "replace").split("\n")
        words = first.split(" ")
        if len(words) == 5 and words[0] == Status.QUEUED:
            words[1:1] = _NEW
        if len(words) != 12:
            raise ValueError(f"the record of job {job_id} cannot be read: {first[:200]!r}")
        attempt, starts, strikes, version, epoch, fence, lease_until = (int(word) for word in words[1:8])
        fields = dict(zip(_PLACE, words[8:], strict=True))
        for line in rest:
            name, _, value = line.partition("=")
            fields[name] = value
        return cls(
            job_id, Status(words[0]), attempt, starts, strikes, version, epoch, fence, lease_until, fields
        )

    def line(self) -> str:
        """The record as Redis holds it."""
        numbers = (
            self.attempt,
            self.starts,
            self.strikes,
            self.version,
            self.epoch,
            self.fence,
            self.lease_until,
        )
        place = [self.fields[name] for name in _PLACE]
        rest = [f"\n{name}={value}" for name, value in self.fields.items() if name not in _PLACE]
        return " ".join((self.status, *map(str, numbers), *place)) + "".join(rest)

    def text(self, name: str) -> str | None:
        """A field that is set, else None: '' counts as absent."""
        return self.fields.get(name) or None

    def number(self, name: str) -> int | None:
        value = self.fields.get(name)
        return int(value) if value else None

    @property
    def task(self) -> str:
        return self.fields["ta"]

    @property
    def lane(self) -> str:
        return self.fields["la"]

    @property
    def entry(self) -> tuple[str, str] | None:
        """Kind of stream (a arrivals, r ready, q quarantine, t behind the turnstile) and id of the entry.

        None: it has none.
        """
        kind, _, entry = self.fields["en"].partition(":")
        return (kind, entry) if entry and kind != "g" else None

    @property
    def gate(self) -> str | None:
        """Where it waits for its turn, if that is a gate."""
        kind, _, gate = self.fields["en"].partition(":")
        return gate if kind == "g" else None

    @property
    def worker(self) -> str | None:
        """Who holds the job, or held it last."""
        return (self.text("ow") or "").partition(" ")[0] or None

    @property
    def started_at(self) -> int | None:
        """When the latest attempt's handler began, as far as Redis has heard."""
        started = self._settled(3)
        return self.number("sa") if started is None else started

    @property
    def finished_at(self) -> int | None:
        """When the job ended; None while it is open."""
        if self.status not in TERMINAL:
            return None
        return self.number("fi") or self._settled(4)

    def _settled(self, position: int) -> int | None:
        words = (self.text("sd") or "").split(" ")
        word = words[position] if len(words) > position else "-"
        return None if word == "-" else int(word)
