"""The incident note: who, when, figures before and after, what was run, and what the audit says of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from streamworker.core.text import visible
from streamworker.ops.history import iso
from streamworker.ops.runbook.answer import AIM, TITLES, Command, Diagnosis, Kind
from streamworker.ops.runbook.sight import Sight
from streamworker.ops.runbook.whys import Step
from streamworker.ops.runbook.words import pace, span
from streamworker.ops.top import LaneRow
from streamworker.postgres.entries import Action

#: What Markdown, or HTML in it, would take for more than text.
_MARKS = re.compile(r"[\\`*_{}\[\]<>()#+!|&~$]")
#: Lines of one command's output that are kept.
LINES = 12
#: Lines of the audit that are written out; of more of one verb, how many there were.
ACTIONS = 200


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that was run: when (ms), and what came of it."""

    step: Step
    command: Command
    at: int
    code: int
    output: str

    def json(self) -> dict[str, Any]:
        return {
            "step": str(self.step),
            "argv": ["streamworker", *self.command.words],
            "at": iso(self.at),
            "exit_code": self.code,
            "output": self.output,
        }


def plain(text: object) -> str:
    """Text that Markdown shows as it is, in one line; control characters are made visible."""
    return _MARKS.sub(lambda found: f"\\{found.group()}", visible(str(text)))


def write(
    before: Diagnosis, after: Diagnosis, ran: Sequence[Ran], actions: Sequence[Action], *, who: str
) -> str:
    """The note as Markdown. `before` and `after` are the same when nothing was run."""
    sight, last = before.sight, after.sight
    parts = [
        f"# Incident: the backlog of {plain(sight.app)}",
        f"- From {iso(sight.at)} to {iso(last.at)}\n- By {plain(who)}\n- {AIM}",
        "## Figures",
        _figures(sight, last),
        "## What was seen",
        *(_seen(before, step) for step in Step),
        "## What was run",
        *([_run(one) for one in ran] or ["Nothing."]),
        "## What the audit says",
        _audit(actions),
        "## Still in force",
        _in_force(after),
        "## Cause and decisions",
        "To be written: what it was, what was decided, what will be changed, and by whom.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    lines += [f"| {' | '.join(plain(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _figures(before: Sight, after: Sight) -> str:
    rows: list[tuple[object, object, object]] = []
    for name in dict.fromkeys(row.lane for row in (*before.lanes, *after.lanes)):
        then, now = _of_lane(before.lane(name)), _of_lane(after.lane(name))
        rows += [(f"lane {name}: {what}", then[what], now[what]) for what in then]
    rows += [
        ("backlog", before.drain.depth, after.drain.depth),
        ("drain", _drain(before), _drain(after)),
        ("jobs that wait for their time", before.retries.scheduled, after.retries.scheduled),
        ("dead letters", before.letters.total, after.letters.total),
        ("workers, slots", f"{before.workers}, {before.slots}", f"{after.workers}, {after.slots}"),
    ]
    return _table(("", "before", "after"), rows)


def _of_lane(row: LaneRow | None) -> dict[str, object]:
    if row is None:
        return {"jobs that wait": "-", "oldest": "-", "in, out": "-"}
    return {
        "jobs that wait": row.ready + row.parked,
        "oldest": span(row.oldest),
        "in, out": f"{pace(row.came_in)}, {pace(row.went_out)}",
    }


def _drain(sight: Sight) -> str:
    found = sight.drain
    state = "off" if not found.on else "paused" if found.paused else "on"
    return state if found.rate is None else f"{state}, {found.rate}"


def _seen(found: Diagnosis, step: Step) -> str:
    told = found.told(step)
    lines = [f"{step.number}. **{TITLES[step]}** ({told.why})"]
    return "\n".join([*lines, *(f"   - {plain(said)}" for said in told.says)])


def _run(one: Ran) -> str:
    kept = [visible(line) for line in one.output.splitlines()]
    more = [f"… and {len(kept) - LINES} lines more"] if len(kept) > LINES else []
    body = "\n".join(["$ " + one.command.line, *kept[:LINES], *more])
    ended = "" if one.code == 0 else f", ended with {one.code}"
    # Four spaces rather than a fence: no line of an output can end the block.
    block = "\n".join(f"    {line}" for line in body.split("\n"))
    return f"{iso(one.at)}, step {one.step.number}{ended}:\n\n{block}"


def _audit(actions: Sequence[Action]) -> str:
    if not actions:
        return "Nothing was changed."
    rows = [(iso(one.at_ms), one.actor, one.action, one.subject, one.detail) for one in actions]
    text = _table(("when", "who", "did", "to what", "value and reason"), rows[:ACTIONS])
    return text if len(rows) <= ACTIONS else f"{text}\n\nAnd {len(rows) - ACTIONS} more."


def _in_force(after: Diagnosis) -> str:
    told = after.told(Step.NOTE)
    commands = [command.line for command in told.of(Kind.LATER)]
    said = "\n".join(f"- {plain(line)}" for line in told.says)
    return said if not commands else f"{said}\n\n" + "\n".join(f"    $ {line}" for line in commands)
