"""Says what happened, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.model.protocol.state import Answer, Enqueue, Replay, Request, State
from tests.model.protocol.stepping import Label


def lines(trace: Iterable[Label]) -> Iterator[str]:
    """A numbered line for each step."""
    for number, label in enumerate(trace, 1):
        yield f"{number:3}. {line(label)}"


def line(label: Label) -> str:
    match label:
        case ("exchange", Request() as request, pick, cut):
            return f"{_request(request)}{_pick(pick)}{_cut(cut)}"
        case ("late", Request() as request, pick):
            return f"late: {_request(request)}{_pick(pick)}"
        case ("late", Replay(job, epoch), _):
            return f"late: job {job} is replayed, meaning epoch {epoch}"
        case ("late", Enqueue(job), _):
            return f"late: job {job} is enqueued again"
        case ("hears", worker, Answer() as answer):
            return f"worker {worker} hears {answer.verdict} and is given {_claims(answer)}"
        case ("loses its connection", worker, Request() as request):
            return f"worker {worker} loses its connection, and this call comes late: {_request(request)}"
        case ("marks the start", worker, job, fence):
            return f"worker {worker} marks the start of job {job} under fence {fence}"
        case ("sweeps", worker, entry, cut):
            return f"worker {worker} sweeps entry {entry}{_cut(cut)}"
        case ("heartbeat", worker):
            return f"worker {worker} sends a heartbeat"
        case (("recovers" | "expires" | "promotes" | "repairs") as verb, job, cut):
            return f"a keeper {verb} job {job}{_cut(cut)}"
        case (("enqueues" | "cancels") as verb, job, cut):
            return f"somebody {verb} job {job}{_cut(cut)}"
        case (("enqueues, and will again," | "replays, and will again,") as verb, job, *_):
            return f"somebody {verb} job {job}"
        case (str() as verb, int() as number, *rest) if verb.endswith(" of"):
            return f"{verb} job {number}"
        case (str() as verb, int() as worker, *rest):
            return " ".join(map(str, (f"worker {worker} {verb}", *rest)))
        case _:
            return " ".join(map(str, label))


def _request(request: Request) -> str:
    who = "a dead worker" if request.worker < 0 else f"worker {request.worker}"
    parts = []
    if request.settle is not None:
        job, fence, outcome = request.settle
        parts.append(f"settles job {job} under fence {fence}: {outcome}")
    if request.offers:
        parts.append(f"offers {', '.join(map(str, request.offers))}")
    if request.limit or request.apart:
        parts.append("claims")
    return f"{who} in session {request.session} {' and '.join(parts) or 'asks for nothing'}"


def _claims(answer: Answer) -> str:
    claims = [f"job {job} under fence {claim.fence}" for job, claim in answer.claims]
    return ", ".join(claims) or "nothing"


def _pick(pick: int | None) -> str:
    return "" if pick is None else f", and is given entry {pick}"


def _cut(cut: int | str | None) -> str:
    if cut is None:
        return ""
    return ", and the answer is lost" if cut == "lost" else f", CUT OFF after {cut} writes"


def picture(state: State) -> Iterator[str]:
    """The state, a line for each thing in it."""
    for job, record in enumerate(state.records):
        yield f"job {job}: {record} {state.asides[job]}"
    for number, entry in enumerate(state.entries, 1):
        yield f"entry {number}: {entry}"
    for number, worker in enumerate(state.workers):
        yield f"worker {number}: {worker}"
    for call in state.late:
        yield f"late: {call}"
