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
    "add_first": _shown("error", "is lost: retry_scheduled", RETRY),
    "fence_grows": _shown("pause+counter", "holds job 0, and worker"),
    "session": _shown("loss", "was recovered from worker 0, which lives"),
    "session_kept": _shown("loss+expiry", "was recovered from worker 0, which lives"),
    "older_session": _shown("read+loss", "holds job 1 and was given it again"),
    "offered_only": _shown("group+loss", "holds job 0 and was given it again"),
    "offer_unheld": _shown("loss", "holds job 0 and was given it again"),
    "hold_outcome": _shown("loss", "was recovered from worker 0, which lives"),
    "list_after": _shown("loss", "was recovered from worker 0, which lives"),
    "processing": _shown("refusal+loss", "is given again as if it had not"),
    "give_back": _shown("group", "its entry is gone before its time"),
    "lease": _shown("pause", "was recovered while its lease was live"),
    "version": _shown("pause+pause", "was judged as claimed and recovered as processing"),
    "outage": _shown("outage", "was recovered from worker 0, which lives"),
    "carry": _shown("deletion", "and its worker has the envelope", RETRY),
    "repair": _shown("deletion", "and not all is over"),
    "flag": _shown("cancel", "was claimed although its cancel was accepted", RETRY),
    "replay_key": _shown("keyed+replay", "both jobs are open, and they have the same key", FAIL),
    "quarantine": _shown("killer", "was struck twice"),
    "epoch": _shown("replay", "was done again in epoch 1", FAIL),
    "open_key": _shown("keyed+error", "was accepted, and has no record"),
}

#: Rules that the model finds no use for as long as all others hold, and the one that does their work.
COVERED = {"offer_once": "older_session"}

assert SHOWN.keys() | COVERED.keys() == RULES.keys()
