"""Dead letters: list them, look at one, send them back into their lanes, or let them go."""

from streamworker.ops.dlq.filters import Filters
from streamworker.ops.dlq.letters import DeadLetter, DeadLetterNotFound, find, key_of, letters, read_letter
from streamworker.ops.dlq.moves import Check, Moved, Skipped, discard, replay
from streamworker.ops.dlq.views import listing, show

__all__ = [
    "Check",
    "DeadLetter",
    "DeadLetterNotFound",
    "Filters",
    "Moved",
    "Skipped",
    "discard",
    "find",
    "key_of",
    "letters",
    "listing",
    "read_letter",
    "replay",
    "show",
]
