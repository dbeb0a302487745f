"""Where each rule shows: a configuration in which its absence brings a violation back."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.protocol.faults import Config, config_of
from tests.model.protocol.rules import RULES
from tests.model.protocol.state import FAIL, RETRY, SUCCESS


class Shown(NamedTuple):
    """What is to be explored without the rule, and what is said of it then, in part."""

    config: Config
    wrong: str


def _shown(name: str, wrong: str, *outcomes: str) -> Shown:
    return Shown(config_of(name, (SUCCESS, *outcomes)), wrong)


#: By rule. Few outcomes and few faults, so that the trace is short.
SHOWN = {
    "fence": _shown("pause", "was accepted under"),
    "settled": _shown("loss", "hears STALE of the outcome that is recorded"),
    "recovered": _shown("pause", "hears ALREADY of what a recovery recorded"),
    "entry": _shown("error", "while it waits in the schedule", RETRY),
    "event_first": _shown("error", "the log does not show it"),
    "record_after": _shown("error", "is lost: retry_scheduled", RETRY),
    "entry_last": _shown("error", "its entry is gone before its time"),
    "key_after": _shown("keyed+error", "both jobs are open, and they have the same key", FAIL),
    "add_first": _shown("error", "is lost: retry_scheduled", RETRY),
    "fence_grows": _shown("pause+counter", "holds job 0, and worker"),
    "session": _shown("loss", "was recovered from worker 0, which lives"),
    "session_kept": _shown("loss+expiry", "was recovered from worker 0, which lives"),
    "older_session": _shown("one-job+read+loss", "holds job 0 and was given it again"),
    "read_unheld": _shown("one-job+read+loss+loss", "holds job 0 and was given it again"),
    "offered_only": _shown("group+loss", "holds job 0 and was given it again"),
    "own_offered": _shown("one-job+loss+loss+pause", "was recovered from worker 0, which lives"),
    "offer_unheld": _shown("loss", "holds job 0 and was given it again"),
    "abandon": _shown("refusal", "is given again for nothing"),
    "hold_outcome": _shown("loss", "was recovered from worker 0, which lives"),
    "list_after": _shown("loss", "was recovered from worker 0, which lives"),
    "give_back": _shown("group", "its entry is gone before its time"),
    "lease": _shown("pause", "was recovered while its lease was live"),
    "outage": _shown("outage", "was recovered from worker 0, which lives"),
    "carry": _shown("deletion", "and its worker has the envelope", RETRY),
    "repair": _shown("deletion", "and not all is over"),
    "flag": _shown("cancel", "was claimed although its cancel was accepted", RETRY),
    "replay_key": _shown("keyed+replay", "both jobs are open, and they have the same key", FAIL),
    "quarantine": _shown("killer", "was struck twice"),
    "epoch": _shown("replay", "was done again in epoch 1", FAIL),
    "open_key": _shown("keyed+error", "was accepted, and has no record"),
}

#: Rules that are missed only when another one is missing too, which does their work: a second line.
COVERED = {
    "offer_once": ("older_session", _shown("one-job+read+loss", "was given it again")),
    "version": ("lease", _shown("pause+pause", "was judged as claimed and recovered as processing")),
    "processing": ("abandon", _shown("refusal", "is given again as if it had not")),
}

assert SHOWN.keys() | COVERED.keys() == RULES.keys()
