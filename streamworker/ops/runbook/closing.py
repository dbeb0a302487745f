"""The last step: what is in force by somebody's word, and how it is taken back. Pure."""

from __future__ import annotations

from streamworker.core.text import counted
from streamworker.ops.runbook.answer import State, Told
from streamworker.ops.runbook.case import Case
from streamworker.ops.runbook.whys import Step


def note(case: Case) -> Told:
    """Step 9: each setting with who and why, and the command that ends it."""
    held = case.sight.held
    if not held:
        return Told(Step.NOTE, State.OK, "nothing_set", ("No operator has set anything.",))
    says = [f"{counted(len(held), 'setting')} of operators in force. Take back what is not needed any more:"]
    for one in held:
        why = f": {one.reason}" if one.reason not in ("", "-") else ""
        says.append(f"{one.what}, by {one.by}{why}")
    commands = [
        case.later(one.undo, one.what) for one in held if all(word.isprintable() for word in one.undo)
    ]
    return Told(Step.NOTE, State.LOOK, "set", tuple(says), tuple(commands))
