"""The values that travel between producer, Redis and worker: envelope, claim, candidate, record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from streamworker.core.states import Status


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a producer sends and a handler needs; opaque bytes to the scripts (R34).

    On the wire a JSON object with one-letter names: `t` task, `a` arguments by name, `k` the key as the
    user gave it, `n` tenant, `c` correlation id.
    """

    task: str
    args: dict[str, Any]
    key: str | None = None
    tenant: str | None = None
    correlation_id: str | None = None

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
        return cls(task, args, raw.get("k"), raw.get("n"), raw.get("c"))


def encode_envelope(
    task: str,
    args: bytes,
    *,
    key: str | None = None,
    tenant: str | None = None,
    correlation_id: str | None = None,
) -> bytes:
    """An envelope around arguments that are encoded already, so that they travel bit for bit."""
    raw: dict[str, Any] = {"t": task, "a": orjson.Fragment(args)}
    if key is not None:
        raw["k"] = key
    if tenant is not None:
        raw["n"] = tenant
    if correlation_id is not None:
        raw["c"] = correlation_id
    return orjson.dumps(raw)


@dataclass(frozen=True, slots=True)
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

    @classmethod
    def parse(cls, head: bytes, job_id: bytes, envelope: bytes) -> Claim:
        """From the three values of the claim script."""
        fence, attempt, starts, strikes, epoch, lane, kind, entry, age, past, unknown = head.decode().split(
            " "
        )
        return cls(
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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A claim whose lease ran out, as the sweep judged it; its fate is decided in Python."""

    job_id: str
    fence: int
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
        job_id, fence, version, status, attempt, starts, strikes, lane, task, worker = line.decode().split(
            " "
        )
        return cls(
            job_id,
            int(fence),
            int(version),
            Status(status),
            int(attempt),
            int(starts),
            int(strikes),
            lane,
            task,
            worker,
        )


@dataclass(frozen=True, slots=True)
class Record:
    """The job's record as Redis holds it. Times are ms since the epoch, by Redis's clock."""

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
    def parse(cls, job_id: str, raw: dict[bytes, bytes]) -> Record:
        """From HGETALL. Raises ValueError when the state token cannot be read."""
        fields = {name.decode(): value.decode("utf-8", "replace") for name, value in raw.items()}
        words = fields.get("st", "").split(" ")
        if len(words) != 8:
            raise ValueError(f"the record of job {job_id} cannot be read: st = {fields.get('st')!r}")
        attempt, starts, strikes, version, epoch, fence, lease_until = (int(word) for word in words[1:])
        return cls(
            job_id, Status(words[0]), attempt, starts, strikes, version, epoch, fence, lease_until, fields
        )

    def text(self, name: str) -> str | None:
        """A field that is set, else None: '' counts as absent."""
        return self.fields.get(name) or None

    def number(self, name: str) -> int | None:
        value = self.fields.get(name)
        return int(value) if value else None

    @property
    def task(self) -> str:
        return self.fields.get("ta", "")

    @property
    def lane(self) -> str:
        return self.fields.get("la", "")
