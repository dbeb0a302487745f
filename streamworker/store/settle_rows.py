"""The rows of `settle` and `exchange`: what became of a claim, as fragments/settle_step.lua reads it."""

from __future__ import annotations

from streamworker.core.job import Candidate, Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import Reason
from streamworker.store.connection import Argument


def mark_row(claim: Claim, started_ago_ms: int) -> tuple[Argument, ...]:
    """A start mark: claimed -> processing."""
    return (f"M {claim.fence} - {started_ago_ms} own started - - 0 -", claim.job_id)


def outcome_row(claim: Claim, outcome: Outcome, started_ago_ms: int | None) -> tuple[Argument, ...]:
    """An owner's settle row; `started_ago_ms` None: the handler did not run.

    Reason `died`: the process that ran the handler is dead, which adds a strike (D22).
    """
    if isinstance(outcome, Success):
        return (f"S {claim.fence} {started_ago_ms or 0} {outcome.reason}", claim.job_id, outcome.result)
    ago = "-" if started_ago_ms is None else str(started_ago_ms)
    by = "died" if outcome.reason is Reason.DIED else "own"
    return _row(claim.job_id, f"{claim.fence} - {ago} {by}", outcome, claim.envelope)


def recovery_row(candidate: Candidate, outcome: Retry | Fail) -> tuple[Argument, ...]:
    """A recovery's settle row: it names the version and lease it judged (D6); the envelope is Redis's."""
    judged = f"{candidate.fence} {candidate.version} {candidate.lease_until}"
    return _row(candidate.job_id, f"{judged} recovered", outcome, b"")


def _row(job_id: str, who: str, outcome: Outcome, envelope: bytes) -> tuple[Argument, ...]:
    match outcome:
        case Success():
            raise TypeError(f"job {job_id}: only a worker whose handler returned can report a success")
        case Retry(delay_ms, error_class, code, error, policy, reason):
            head = f"R {who} {reason} {error_class} {code} {delay_ms} {policy}"
            return (head, job_id, error.encode(), envelope)
        case Fail(error_class, code, error, reason):
            return (f"F {who} {reason} {error_class} {code} 0 -", job_id, error.encode(), envelope)
        case Release(reason, delay_ms, gates):
            return (f"L {who} {reason} - - {delay_ms} -", job_id, gates.encode(), envelope)
