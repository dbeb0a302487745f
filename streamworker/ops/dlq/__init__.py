"""Dead letters: list them, look at one, send them back into their lanes, or let them go."""

from streamworker.ops.dlq.causes import Cause, causes
from streamworker.ops.dlq.checks import Check, Skipped, replay_command
from streamworker.ops.dlq.editing import Edit, NotEdited, edit, objection, prepare
from streamworker.ops.dlq.filters import Filters
from streamworker.ops.dlq.letters import DeadLetter, DeadLetterNotFound, find, key_of, letters, read_letter
from streamworker.ops.dlq.mending import Mend, mend
from streamworker.ops.dlq.moves import Moved, Which, discard
from streamworker.ops.dlq.portable import BadLine, Imported, bring_back, end_line, export, read_lines
from streamworker.ops.dlq.replaying import CALM, Pace, replay
from streamworker.ops.dlq.views import listing, show

__all__ = [
    "CALM",
    "BadLine",
    "Cause",
    "Check",
    "DeadLetter",
    "DeadLetterNotFound",
    "Edit",
    "Filters",
    "Imported",
    "Mend",
    "Moved",
    "NotEdited",
    "Pace",
    "Skipped",
    "Which",
    "bring_back",
    "causes",
    "discard",
    "edit",
    "end_line",
    "export",
    "find",
    "key_of",
    "letters",
    "listing",
    "mend",
    "objection",
    "prepare",
    "read_letter",
    "read_lines",
    "replay",
    "replay_command",
    "show",
]
