"""How a test reads a shard: its state, a job's state in plain words, its history."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from streamworker.core.job import Record
from streamworker.core.states import Status
from streamworker.store.connection import Argument, SyncLink
from streamworker.store.keys import Keys
from tests.lua import snapshot
from tests.lua.snapshot import Line, Snapshot

#: Where the clock of each shard begins, in ms.
START = 1_700_000_000_000


class Reader:
    """One namespace on one server, with a clock that only the test moves."""

    def __init__(self, link: SyncLink, namespace: str) -> None:
        self.link = link
        self.keys = Keys(namespace)
        self.now = START

    def redis(self, *command: Argument) -> Any:
        """A command of the test's own, outside any script."""
        return self.link.call(*command)

    def clear(self) -> None:
        """Remove the namespace from the server."""
        for key in self.redis("KEYS", f"{self.keys.tag}:*"):
            self.redis("UNLINK", key)

    def look(self) -> Snapshot:
        return snapshot.take(self.link, self.keys)

    def record(self, job_id: str) -> Record:
        found = self.look().record(job_id)
        assert found is not None, f"{job_id} has no record"
        return found

    def state(self, job_id: str) -> dict[str, Any]:
        """A job as a test reads it: its token, its place, its key, whether it is in the DLQ."""
        now = self.look()
        record = now.record(job_id)
        if record is None:
            return {"status": None}
        schedule = now.zsets.get("schedule", {})
        letter = next((one for one in now.dead_letters().values() if one["id"] == job_id), None)
        key = now.strings.get(f"key:{record.text('ky')}") if record.text("ky") else None
        place = record.entry[0] if record.entry is not None and now.entry_stands(record) else None
        return {
            "status": str(record.status),
            "attempt": record.attempt,
            "starts": record.starts,
            "strikes": record.strikes,
            "epoch": record.epoch,
            "held": record.fence > 0,
            "lease_in": record.lease_until - self.now if record.lease_until else None,
            "place": place or record.gate or ("schedule" if job_id in schedule else None),
            "due_in": schedule[job_id] - self.now if job_id in schedule else None,
            "owner": now.holder_of_entry(record),
            "key": key.decode().split(" ")[2] if key else None,
            "flag": record.text("cx"),
            "error": record.text("ec"),
            "dead": letter["code"] if letter else None,
        }

    def check(self, job_id: str, **expected: Any) -> None:
        """Compare the named parts of `state`."""
        state = self.state(job_id)
        found = {name: state.get(name) for name in expected}
        assert found == expected, f"{job_id} is {state}"

    def damage(self, job_id: str, text: str = "junk") -> None:
        """Make the first line of a record unreadable; its other lines stay."""
        raw = self.redis("GET", self.keys.job(job_id)).decode()
        self.redis("SET", self.keys.job(job_id), "\n".join([text, *raw.split("\n")[1:]]))

    def rewrite(self, job_id: str, status: str | None = None, **fields: str) -> None:
        """Write a record with another status or other fields, as no script would."""
        record = self.record(job_id)
        changed = replace(
            record, status=Status(status) if status else record.status, fields=record.fields | fields
        )
        self.redis("SET", self.keys.job(job_id), changed.line())

    def history(self, job_id: str) -> list[Line]:
        return [line for line in self.look().lines() if line.job_id == job_id]

    def edges(self, job_id: str) -> list[str]:
        """The job's moves, such as `queued>claimed`."""
        return [f"{line.source}>{line.target}" for line in self.history(job_id)]

    def audits(self) -> list[str]:
        """What the log has of requests that moved no job, a text for each call."""
        return [
            fields[b"a"].decode()
            for fields in self.look().streams.get("events", {}).values()
            if b"a" in fields
        ]

    def letter(self, job_id: str) -> str:
        """The entry id of the job's dead letter."""
        (found,) = [entry for entry, one in self.look().dead_letters().items() if one["id"] == job_id]
        return found

    def stats(self) -> Counter[str]:
        """The counters that are not zero."""
        return Counter(self.look().stats())
