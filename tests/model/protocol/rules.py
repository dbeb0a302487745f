"""The rules that the model obeys, each a switch, so that it can be taken out."""

from __future__ import annotations

from dataclasses import dataclass, field, fields


def rule(number: str, text: str) -> bool:
    """A switch that is on: a rule with its number in the design, and what it says."""
    switch: bool = field(default=True, metadata={"number": number, "text": text})
    return switch


@dataclass(frozen=True, slots=True)
class Rules:
    """Which rules hold."""

    fence: bool = rule("D1", "an outcome is accepted under the fence of the record only")
    settled: bool = rule("D1", "the record keeps what its last fence came to: a settle sent again is ALREADY")
    recovered: bool = rule("D1", "an owner is told STALE, not ALREADY, of what a recovery recorded")
    entry: bool = rule("D2", "an entry counts only if the record names it")
    event_first: bool = rule("D3", "the event is written before the record")
    record_after: bool = rule("D3", "the record is written after its consequences: entry, schedule, body")
    entry_last: bool = rule("D3", "the entry that has served is removed last")
    key_after: bool = rule("D3", "an idempotency key is freed after the record, not before")
    add_first: bool = rule("D3", "promote adds the entry before it takes the job from the schedule")
    fence_grows: bool = rule("D4", "a fence is greater than all before it, even if the counter was lost")
    session: bool = rule("D5", "a claim needs the session that the worker has now")
    session_kept: bool = rule("D5", "a new session is greater than the worker's own; none stored, no claim")
    older_session: bool = rule("D5", "an offered claim is given again only if it is of an older session")
    offered_only: bool = rule("D5", "a claim is given again only for an offered entry, not one that was read")
    own_offered: bool = rule("D5", "what is claimed by an offer is pending for its holder from then on")
    offer_unheld: bool = rule("D5", "a worker offers only what it does not hold")
    read_unheld: bool = rule("D7", "what the blocking reader was given is offered only if it is not held")
    offer_once: bool = rule("D5", "an entry is offered in one call at a time")
    abandon: bool = rule("D5", "what a worker leaves to recovery it offers no more")
    hold_outcome: bool = rule("D5", "a claim is held until its settle is acknowledged")
    list_after: bool = rule("D5", "a worker lists what is pending in its new session, not before it")
    processing: bool = rule("D5", "a claim in processing is left to recovery, even if its holder offers it")
    give_back: bool = rule("D5", "an entry whose job another worker holds is given back to that worker")
    version: bool = rule("D6", "the settle of a recovery requires the version that was judged")
    lease: bool = rule("D6", "the settle of a recovery requires the lease that was judged")
    outage: bool = rule("D6", "after an outage nothing is recovered for one lease")
    carry: bool = rule("D8", "a worker's retry or release carries the envelope, for the entry may be gone")
    repair: bool = rule("D8", "a slow scan looks for open records that are nowhere")
    flag: bool = rule("D9", "retry, release and recovery obey the cancel flag and the deadline")
    replay_key: bool = rule("D11", "a replay takes the idempotency key again, or is refused")
    quarantine: bool = rule("D22", "a job with strikes runs apart")
    epoch: bool = rule("D23", "a replay names the epoch that it means")
    open_key: bool = rule("R43", "a key that says open is free if its job has no record")


#: Number and text of each, by name.
RULES = {one.name: (one.metadata["number"], one.metadata["text"]) for one in fields(Rules)}


def without(*names: str) -> Rules:
    """All rules but these. Raises KeyError for one that does not exist."""
    for name in names:
        RULES[name]
    return Rules(**dict.fromkeys(names, False))
