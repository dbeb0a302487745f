"""From a simulation's story to the history that the checker of the fault tests judges."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from streamworker.app import App
from streamworker.core.states import TERMINAL, Reason, Status
from streamworker.store import events
from streamworker.store.events import Transition
from streamworker.store.keys import is_live_state
from tests.chaos.history import Final, History, Limits, declared, lives
from tests.lua import snapshot
from tests.lua.snapshot import Snapshot
from tests.simulation import jobs
from tests.simulation.redis import RealRedis
from tests.simulation.story import Story


def history_of(story: Story, redis: RealRedis, app: App, *, margin: float) -> History:
    """What happened, with the log's times moved back to the virtual clock; `margin` is beyond D6's bound."""
    seen = snapshot.take(redis.link, redis.keys)
    attempts = dict.fromkeys(app.tasks, jobs.ATTEMPTS)
    return History(
        limits=Limits(lease=jobs.LEASE, margin=margin, attempts=attempts, **declared(app)),
        accepted=story.accepted,
        maybe=story.maybe,
        starts=story.starts,
        ends=story.ends,
        transitions=list(_transitions(seen, story)),
        faults=story.faults,
        pauses=story.pauses,
        figures=story.figures,
        jumps=story.jumps,
        final=_final(seen),
    )


#: Ends of jobs whose entry or record somebody has tampered with.
_DAMAGES = frozenset({"entry_deleted", "bad_record"})


def broken_promises(story: Story, history: History) -> Iterator[str]:
    """What operators and waiters were told, and the log does not bear out."""
    edges = {job_id: life.edges for job_id, life in lives(history).items()}
    for job_id, since in story.flagged:
        for edge in edges.get(job_id, []):
            if edge.at_ms < since * 1000 + 2:
                continue
            if edge.reason == Reason.REPLAYED:
                break
            if edge.to_status is Status.CLAIMED:
                yield f"cancel_forgotten: job {job_id} was flagged at {since:.3f} and claimed at {edge.at_ms}"
    for edge in history.transitions:
        if edge.facts.get("code") in _DAMAGES:
            yield f"damaged: job {edge.job_id} ended {edge.facts['code']}, and nobody deletes anything here"
    for job_id, status in story.results:
        if all(edge.to_status is not status for edge in edges.get(job_id, [])):
            yield f"wrong_result: job {job_id} was said to be {status}, which it never was"


def _transitions(seen: Snapshot, story: Story) -> Iterator[Transition]:
    jumps = list(story.offsets)
    offset = 0
    for number, fields in enumerate(seen.streams.get("events", {}).values()):
        while jumps and jumps[0][0] <= number:
            offset = jumps.pop(0)[1]
        for edge in events.decode(fields):
            yield edge._replace(at_ms=edge.at_ms - offset)


def _final(seen: Snapshot) -> Final:
    lanes = [name for name in seen.streams if name.startswith("lane:")]
    streams = {name: (len(seen.streams[name]), len(seen.pending.get(name, {}))) for name in lanes}
    records = seen.records()
    # A letter that an operator discarded is accounted for by the record that says so.
    discarded = [job_id for job_id, one in records.items() if one.text("ec") == "persistent discarded"]
    return Final(
        streams=streams,
        waiting=dict(_waiting(seen)),
        counters={name: n for name, n in seen.stats().items() if name.startswith(_DEPTHS)},
        immortal=[name for name, ttl in seen.ttls.items() if ttl == -1 and _forgotten(name, seen)],
        records=records,
        dead_letters=[letter["id"] for letter in seen.dead_letters().values()] + discarded,
    )


#: Counters of what is open, and keys that hold what waits.
_DEPTHS = ("queued:", "scheduled:", "in_flight:", "parked:", "turned:")
_WAITING = ("schedule", "deadlines", "timers", "waiting", "turnstile", "pauses")


def _waiting(seen: Snapshot) -> Iterator[tuple[str, int]]:
    held: dict[str, Sized] = {**seen.zsets, **seen.hashes, **seen.strings}
    for name, members in held.items():
        if name in _WAITING or name.startswith(("gate:", "waiting:")):
            yield name, len(members)


def _forgotten(name: str, seen: Snapshot) -> bool:
    """Whether a key without a TTL is none that may have none, now that every job has ended."""
    kind, _, job_id = name.partition(":")
    if kind in ("job", "body"):
        record = seen.record(job_id)
        return record is None or record.status in TERMINAL
    return not is_live_state(f"{{any:0}}:{name}") or kind == "key"
