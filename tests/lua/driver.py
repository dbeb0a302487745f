"""Drives the scripts on a real server with short verbs, and checks the invariants after every call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from streamworker.core.job import Candidate, Claim
from streamworker.core.outcome import Fail, Outcome, Retry
from streamworker.store import lua, scripts, settle_rows
from streamworker.store.connection import Argument, SyncLink
from tests.lua.invariants import violations
from tests.lua.reader import START as START
from tests.lua.reader import Reader
from tests.lua.snapshot import Snapshot

#: ms that a claim lives in these tests.
LEASE = 30_000
RETENTION = scripts.RETENTION_MS
LIVENESS = 60_000
Offer = tuple[str, str, str]


def job(
    job_id: str, *, lane: str = "normal", task: str = "add", env: bytes | None = None, **more: Any
) -> scripts.NewJob:
    """One row of `enqueue`; the envelope names the job, so that a mix-up shows."""
    return scripts.NewJob(job_id, task, lane, b"env of " + job_id.encode() if env is None else env, **more)


def plan_of(*rows: str | tuple[str, int, int, int | str]) -> str:
    """The `plan` argument from lane names or (lane, reserved, quota, phase)."""
    full = [(row, 0, 500, 0) if isinstance(row, str) else row for row in rows]
    return "\n".join(" ".join(str(word) for word in row) for row in full)


class Shard(Reader):
    """Drives the scripts of one namespace."""

    def __init__(self, link: SyncLink, namespace: str, *, folder: Path | None = None) -> None:
        """`folder` holds other scripts than the package's, for tests that change them."""
        super().__init__(link, namespace)
        self.folder = folder
        self.sessions: dict[str, int] = {}
        #: Jobs that the test itself damaged: the invariants leave them out.
        self.tampered: set[str] = set()
        #: Whether each call is followed by a check of the invariants.
        self.watchful = True
        #: Fences handed out so far; each must be larger than those before.
        self.fences: list[int] = []
        self.last = Snapshot()
        self._composed: dict[str, lua.Script] = {}

    # --- sending ---------------------------------------------------------------------------------------

    def send(self, call: scripts.Call) -> Any:
        """Run a script, check every invariant, and return its raw reply. Raises ReplyError."""
        script = self.script(call.script)
        reply = self.link.script(script, self.keys.tag, *call.argv)
        if not self.watchful:
            return reply
        before, self.last = self.last, self.look()
        wrong = violations(before, self.last, tampered=self.tampered)
        assert not wrong, f"after {call.script.name} {call.argv}:\n" + "\n".join(wrong)
        return reply

    def script(self, script: lua.Script) -> lua.Script:
        """The script of that name in the shard's folder."""
        if self.folder is None:
            return script
        if script.name not in self._composed:
            same = all((self.folder / file).is_symlink() for file in {file for file, _ in script.origin})
            self._composed[script.name] = script if same else lua.compose(self.folder, script.name)
        return self._composed[script.name]

    # --- the verbs -------------------------------------------------------------------------------------

    @property
    def clock(self) -> str:
        return str(self.now)

    def enqueue(self, *jobs: scripts.NewJob) -> list[str]:
        """The disposition of each."""
        rows = [word for one in jobs for word in one.row()]
        return _texts(self.send(scripts.enqueue(clock=self.clock, rows=rows)))

    def coalesce(self, *jobs: scripts.NewJob) -> list[str]:
        """The disposition of each, where some may be merged."""
        rows = [word for one in jobs for word in one.row()]
        return _texts(self.send(scripts.coalesce(clock=self.clock, rows=rows)))

    def put(self, job_id: str, **options: Any) -> str:
        """Enqueue one job."""
        return self.enqueue(job(job_id, **options))[0]

    def session(self, worker: str = "w1", *, own: int = 0) -> int:
        """Open a session, which the worker's later claims use."""
        number = int(
            self.send(scripts.session(worker=worker, own=own, liveness_ms=LIVENESS, rows=["host", "h"]))
        )
        self.sessions[worker] = number
        return number

    def claim_call(
        self,
        worker: str = "w1",
        *,
        limit: int = 100,
        shared: int | None = None,
        plan: str | None = None,
        offers: Sequence[Offer] = (),
        session: int | None = None,
    ) -> scripts.Call:
        return scripts.claim(
            clock=self.clock,
            worker=worker,
            session=self._session_of(worker, session),
            lease_ms=LEASE,
            retention_ms=RETENTION,
            limit=limit,
            shared=limit if shared is None else shared,
            offers=scripts.offer_lines(offers),
            plan=plan_of("normal") if plan is None else plan,
        )

    def claim(self, worker: str = "w1", **options: Any) -> list[Claim]:
        """What the worker got; opens a session for a worker that has none."""
        if worker not in self.sessions:
            self.session(worker)
        verdict, claims = self.send(self.claim_call(worker, **options))
        assert verdict.split(b" ")[0] == b"OK"
        return self._claims(claims)

    def claim_one(self, worker: str = "w1", **options: Any) -> Claim:
        (claim,) = self.claim(worker, limit=1, **options)
        return claim

    def take(self, job_id: str, worker: str = "w1", **options: Any) -> Claim:
        """Enqueue a job and claim it; no other may be waiting in its lane."""
        assert self.put(job_id, **options) == "ACCEPTED"
        claim = self.claim_one(worker, plan=plan_of(options.get("lane", "normal")))
        assert claim.job_id == job_id
        return claim

    def settle_call(self, rows: Iterable[Argument], *, actor: str = "w1") -> scripts.Call:
        return scripts.settle(
            clock=self.clock, actor=actor, lease_ms=LEASE, retention_ms=RETENTION, rows=rows
        )

    def settle_rows(self, *rows: tuple[Argument, ...]) -> list[str]:
        """A reply for each row."""
        return _texts(self.send(self.settle_call([word for row in rows for word in row])))

    def settle(self, claim: Claim, outcome: Outcome, *, ago: int | None = 5) -> str:
        """`ago` ms ago the handler began; None: it did not run."""
        return self.settle_rows(settle_rows.outcome_row(claim, outcome, ago))[0]

    def start(self, claim: Claim, *, ago: int = 20) -> str:
        """Mark a start: claimed -> processing."""
        return self.settle_rows(settle_rows.mark_row(claim, ago))[0]

    def recovery(self, candidate: Candidate, outcome: Retry | Fail) -> str:
        """Commit what was decided for a claim that was found dead."""
        return self.settle_rows(settle_rows.recovery_row(candidate, outcome))[0]

    def exchange_call(
        self,
        rows: Iterable[Argument],
        worker: str = "w1",
        *,
        limit: int = 0,
        plan: str | None = None,
        offers: Sequence[Offer] = (),
        session: int | None = None,
        calls: str = "",
    ) -> scripts.Call:
        return scripts.exchange(
            clock=self.clock,
            worker=worker,
            session=self._session_of(worker, session),
            lease_ms=LEASE,
            retention_ms=RETENTION,
            limit=limit,
            shared=limit,
            offers=scripts.offer_lines(offers),
            plan=plan_of("normal") if plan is None else plan,
            calls=calls,
            rows=rows,
        )

    def exchange(
        self, *rows: tuple[Argument, ...], worker: str = "w1", **options: Any
    ) -> tuple[str, list[Claim], list[str]]:
        """(verdict, claims, a reply for each settle row)."""
        words = [word for row in rows for word in row]
        verdict, claims, replies = self.send(self.exchange_call(words, worker, **options))
        return verdict.decode(), self._claims(claims), _texts(replies)

    def heartbeat(self, *claims: Claim, worker: str = "w1") -> tuple[str, list[str], list[str]]:
        """(verdict, ids of the lost, id and code of each cancelled)."""
        rows = [word for claim in claims for word in (claim.job_id, claim.fence)]
        verdict, lost, cancelled = self.send(
            scripts.heartbeat(
                clock=self.clock, worker=worker, lease_ms=LEASE, liveness_ms=LIVENESS, rows=rows
            )
        )
        return verdict.decode(), _texts(lost), _texts(cancelled)

    def recover_call(
        self, lane: str = "normal", kind: str = "a", *, worker: str = "keeper", count: int = 100
    ) -> scripts.Call:
        return scripts.recover(
            clock=self.clock,
            worker=worker,
            lease_ms=LEASE,
            retention_ms=RETENTION,
            lane=lane,
            kind=kind,
            count=count,
        )

    def recover(
        self, lane: str = "normal", kind: str = "a", **options: Any
    ) -> tuple[int, bool, list[Candidate]]:
        """(hold left in ms, whether the pass is complete, candidates)."""
        hold, complete, found = self.send(self.recover_call(lane, kind, **options))
        return int(hold), bool(complete), [Candidate.parse(line) for line in found]

    def found_dead(self, lane: str = "normal", kind: str = "a") -> list[Candidate]:
        """What a sweep finds that is past the hold."""
        hold, _, found = self.recover(lane, kind)
        assert hold == 0
        return found

    def repair(self, *job_ids: str) -> tuple[int, list[Candidate]]:
        """(number put right, candidates)."""
        mended, found = self.send(
            scripts.repair(clock=self.clock, worker="keeper", retention_ms=RETENTION, rows=job_ids)
        )
        return mended, [Candidate.parse(line) for line in found]

    def promote(self, *, limit: int = 500) -> tuple[int, int, int | None]:
        """(promoted, expired, due time of the next)."""
        promoted, expired, nearest, _ = self.send(
            scripts.promote(clock=self.clock, worker="keeper", retention_ms=RETENTION, limit=limit)
        )
        return promoted, expired, int(nearest) if nearest else None

    def wake(self, *, limit: int = 100) -> tuple[int, int | None]:
        """(timers served, when the next is due in ms)."""
        served, nearest = self.send(
            scripts.wake(clock=self.clock, worker="keeper", retention_ms=RETENTION, limit=limit)
        )
        return served, int(nearest) if nearest else None

    def drain(self, *high_waters: tuple[str, int], limit: int = 100) -> tuple[int, int | None]:
        """(drained, ms until the next is to be drained)."""
        drained, again = self.send(self.drain_call(*high_waters, limit=limit))
        return drained, int(again) if again else None

    def drain_call(self, *high_waters: tuple[str, int], limit: int = 100) -> scripts.Call:
        rows = [word for pair in high_waters or [("normal", 1000)] for word in pair]
        return scripts.drain(
            clock=self.clock, worker="keeper", retention_ms=RETENTION, limit=limit, rows=rows
        )

    def tune(self, verb: str, name: str, value: object = "", reason: str = "because") -> str:
        return self._operate(scripts.tune, verb, name, str(value), reason)[0]

    def declare(self, lanes: str = "priority normal", **limits: str) -> int:
        rows = [word for pair in limits.items() for word in pair]
        return int(self.send(scripts.declare(clock=self.clock, lanes=lanes, rows=rows)))

    def cancel(self, job_id: str, epoch: int | str = "-") -> str:
        return self._operate(scripts.cancel, job_id, str(epoch))[0]

    def hasten(self, *job_ids: str) -> list[str]:
        return self._operate(scripts.hasten, *job_ids)

    def replay(self, *letters: str) -> list[str]:
        """Replay dead letters by entry id."""
        return self.replay_named(*self.named(*letters))

    def replay_named(self, *words: str, task: str = "-") -> list[str]:
        """Replay what is named by letter, id, epoch."""
        rows = [word for i in range(0, len(words), 3) for word in (*words[i : i + 3], task)]
        return self._operate(scripts.replay, *rows)

    def discard(self, *letters: str) -> list[str]:
        """Discard dead letters by entry id."""
        return self.discard_named(*self.named(*letters))

    def discard_named(self, *words: str) -> list[str]:
        return self._operate(scripts.discard, *words)

    def named(self, *letters: str) -> list[str]:
        """The words that name dead letters: letter, id, epoch."""
        dead = self.look().dead_letters()
        return [word for letter in letters for word in (letter, dead[letter]["id"], dead[letter]["epoch"])]

    def watch(self, job_id: str, *, wait: int = 0) -> str | list[bytes]:
        reply = self.send(scripts.watch(clock=self.clock, job_id=job_id, wait=wait))
        return reply.decode() if isinstance(reply, bytes) else list(reply)

    def forget(self, worker: str, *lanes: str, leave: int = 0) -> int | str:
        reply = self.send(scripts.forget(worker=worker, leave=leave, rows=lanes or ("normal",)))
        return reply.decode() if isinstance(reply, bytes) else int(reply)

    def elect(self, worker: str, *, ttl_ms: int = 10_000) -> bool:
        return bool(self.send(scripts.elect(role="keeper", worker=worker, ttl_ms=ttl_ms)))

    # --- time ------------------------------------------------------------------------------------------

    def elapse(self, ms: int, *, swept: bool = True) -> None:
        """Let time pass, for the clock and for the idle times of the pending lists.

        `swept` keeps a sweep going in an empty lane meanwhile, as a keeper would, so that no outage is seen.
        """
        left = ms
        while left > 0:
            step = min(left, LEASE // 2) if swept else left
            left -= step
            self.now += step
            self._age(step)
            if swept:
                self.recover("nobodys")

    def pass_hold(self) -> None:
        """Sweep until the hold that follows the first sweep is over."""
        self.recover("nobodys")
        self.elapse(LEASE)

    def idle(self, claim: Claim, ms: int) -> None:
        """Set how long the claim's entry has been idle, leaving it with its owner."""
        stream = self.keys.stream(claim.lane, claim.kind)
        owner = self.state(claim.job_id)["owner"]
        self.redis("XCLAIM", stream, "workers", owner, 0, claim.entry, "IDLE", ms, "JUSTID")

    def _age(self, ms: int) -> None:
        for stream, entries in self.look().pending.items():
            for entry, one in entries.items():
                idle = one.idle_ms + ms
                self.redis(
                    "XCLAIM",
                    f"{self.keys.tag}:{stream}",
                    "workers",
                    one.consumer,
                    0,
                    entry,
                    "IDLE",
                    idle,
                    "JUSTID",
                )

    # --- damage ----------------------------------------------------------------------------------------

    def offer_of(self, claim: Claim) -> Offer:
        return (claim.lane, claim.kind, claim.entry)

    def deliver(self, worker: str, lane: str = "normal", kind: str = "a", count: int = 10) -> list[Offer]:
        """What the worker's blocking reader does: entries are delivered and no claim is made."""
        stream = self.keys.stream(lane, kind)
        reply = self.redis("XREADGROUP", "GROUP", "workers", worker, "COUNT", count, "STREAMS", stream, ">")
        return [(lane, kind, entry.decode()) for entry, _ in reply[0][1]] if reply else []

    def delete_entry(self, job_id: str) -> Offer:
        """Delete the job's entry under everybody's eyes."""
        record = self.record(job_id)
        assert record.entry is not None
        kind, entry = record.entry
        self.tampered.add(job_id)
        assert self.redis("XDEL", self.keys.stream(record.lane, kind), entry) == 1
        return (record.lane, kind, entry)

    def forget_record(self, job_id: str) -> None:
        """The record's retention is over, or Redis lost it."""
        self.redis("DEL", self.keys.job(job_id), self.keys.body(job_id))

    def _session_of(self, worker: str, session: int | None) -> int:
        return self.sessions.get(worker, 0) if session is None else session

    def _operate(self, wrapper: Any, *rows: str) -> list[str]:
        return _texts(
            self.send(wrapper(clock=self.clock, actor="operator", retention_ms=RETENTION, rows=rows))
        )

    def _claims(self, flat: list[bytes]) -> list[Claim]:
        found = [Claim.parse(*flat[i : i + 3]) for i in range(0, len(flat), 3)]
        for claim in found:
            assert claim.fence > max(self.fences, default=0), f"the fence did not grow: {claim}"
            self.fences.append(claim.fence)
        return found


def _texts(replies: list[bytes]) -> list[str]:
    return [reply.decode() for reply in replies]
