"""A desk at which tests call commands as a user would, with jobs laid out by the scripts themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import redis
from typer.testing import CliRunner, Result

from streamworker.cli.main import command_line
from streamworker.core.job import Claim, Record
from streamworker.core.outcome import Fail, Outcome
from streamworker.core.states import ErrorClass
from streamworker.request import Options, new_job
from streamworker.store import scripts, settle_rows
from streamworker.store.connection import Argument, SyncLink
from streamworker.store.keys import Keys

LEASE_MS = 30_000


class Desk:
    """One namespace of one server. A context manager."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace
        self.keys = Keys(namespace)
        self.redis: Any = redis.Redis.from_url(url, protocol=2, socket_timeout=10)
        self._link = SyncLink(url)
        self._session = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close()
        self.redis.close()

    @property
    def env(self) -> dict[str, str]:
        return {"STREAMWORKER_REDIS_URL": self.url, "STREAMWORKER_NAMESPACE": self.namespace}

    # --- commands ------------------------------------------------------------------------------------------

    def call(
        self,
        *arguments: str,
        code: int = 0,
        stdin: str | bytes | None = None,
        env: dict[str, str] | None = None,
    ) -> Result:
        """Run `streamworker ARGUMENTS`; fails unless it ends with `code`."""
        env = self.env | (env or {})
        result = CliRunner().invoke(command_line(arguments[0]), list(arguments), env=env, input=stdin)
        assert result.exit_code == code, f"{arguments} ended with {result.exit_code}:\n{result.output}"
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Run a command with --json and return what it printed on stdout, all of which must be JSON."""
        return json.loads(self.call(*arguments, "--json", code=code).stdout)

    def refused(self, *arguments: str, code: int = 1, stdin: str | bytes | None = None) -> str:
        """Run a command that fails; returns its one line on stderr, without `error: `."""
        result = self.call(*arguments, code=code, stdin=stdin)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")

    # --- jobs ----------------------------------------------------------------------------------------------

    def run(self, call: scripts.Call, *, tag: str | None = None) -> Any:
        """Run a script."""
        return self._link.script(call.script, tag or self.keys.tag, *call.argv)

    def put(
        self,
        task: str = "add",
        args: dict[str, Any] | None = None,
        *,
        lane: str = "normal",
        gates: str = "",
        **options: Any,
    ) -> str:
        """Enqueue a job and return its id."""
        job = replace(new_job(task, args or {}, Options.of(lane=lane, **options)), gates=gates)
        (reply,) = self.run(scripts.enqueue(clock="", rows=job.row()))
        assert reply.split()[0] in (b"ACCEPTED", b"SCHEDULED", b"PARKED")
        return job.job_id

    def claim(self, count: int = 1, *, lane: str = "normal", worker: str = "w1") -> list[Claim]:
        """Claim jobs of a lane."""
        facts = ("app", "shop", "host", "h1", "pid", "17", "lanes", "normal,priority", "concurrency", "8",
                 "started_at", "1767225600123")  # fmt: skip
        if not self._session:
            session = scripts.session(worker=worker, own=0, liveness_ms=60_000, rows=facts)
            self._session = int(self.run(session))
        verdict, found = self.run(
            scripts.claim(
                clock="", worker=worker, session=self._session, lease_ms=LEASE_MS,
                retention_ms=scripts.RETENTION_MS, limit=count, shared=count, offers="",
                plan=f"{lane} 0 {count} 0",
            )
        )  # fmt: skip
        assert verdict.split()[0] == b"OK"
        return [Claim.parse(*found[i : i + 3]) for i in range(0, len(found), 3)]

    def mark(self, claim: Claim, *, worker: str = "w1") -> None:
        """Its handler runs."""
        self._settle(worker, settle_rows.mark_row(claim, 0))

    def settle(self, claim: Claim, outcome: Outcome, *, worker: str = "w1") -> None:
        """Its handler has ended."""
        self._settle(worker, settle_rows.outcome_row(claim, outcome, 0))

    def _settle(self, worker: str, rows: tuple[Argument, ...]) -> None:
        call = scripts.settle(
            clock="", actor=worker, lease_ms=LEASE_MS, retention_ms=scripts.RETENTION_MS, rows=rows
        )
        assert self.run(call) == [b"OK"]

    def dead(
        self,
        task: str = "add",
        args: dict[str, Any] | None = None,
        *,
        code: str = "bad_total",
        error: str = "Bad: the total is wrong",
        **options: Any,
    ) -> str:
        """A job with a dead letter."""
        job_id = self.put(task, args, **options)
        (claim,) = self.claim(lane=options.get("lane", "normal"))
        assert claim.job_id == job_id
        self.settle(claim, Fail(ErrorClass.PERSISTENT, code, error))
        return job_id

    def age_lease(self, job_id: str, ms: int) -> None:
        """Let the claim of a job have run out so much earlier."""
        record = self.record(job_id)
        assert record is not None
        self.redis.set(self.keys.job(job_id), replace(record, lease_until=record.lease_until - ms).line())

    def forget(self, job_id: str) -> None:
        """Let the record expire, as it does by itself after its retention."""
        self.redis.delete(self.keys.job(job_id), self.keys.body(job_id))

    def letters(self) -> list[str]:
        """The jobs that have a dead letter."""
        return [fields[b"id"].decode() for _, fields in self.redis.xrange(self.keys.dlq)]

    def record(self, job_id: str) -> Record | None:
        """The job's record as Redis holds it."""
        raw = self.redis.get(self.keys.job(job_id))
        return None if raw is None else Record.parse(job_id, raw)

    def status(self, job_id: str) -> str:
        record = self.record(job_id)
        return "missing" if record is None else str(record.status)
