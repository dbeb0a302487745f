"""What a step may come to, in one word for machines, and what the word means: a closed list for each step."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Step(StrEnum):
    """The nine steps, in their order; the value is what `--yes` takes."""

    LANE = "lane"
    DEPENDENCY = "dependency"
    THROTTLE = "throttle"
    CRITICAL = "critical"
    DRAIN = "drain"
    RETRIES = "retries"
    LETTERS = "letters"
    REPLAY = "replay"
    NOTE = "note"

    @property
    def number(self) -> int:
        """From 1."""
        return list(Step).index(self) + 1


WHYS: Mapping[Step, Mapping[str, str]] = {
    Step.LANE: {
        "quiet": "no lane is late",
        "paused": "a lane is paused",
        "late": "a lane is over its target, or grows",
        "not_served": "jobs wait in a lane that no living worker serves",
        "no_worker": "no worker is alive",
    },
    Step.DEPENDENCY: {
        "well": "none is ill",
        "none_declared": "no task names one",
        "open": "a breaker has seen it, and holds the jobs back",
        "paused": "an operator has paused it",
        "failing": "many of its calls fail",
        "slow": "its jobs hold most of the slots while others wait for one",
    },
    Step.THROTTLE: {
        "nothing_to_cut": "nobody enqueues more than leaves",
        "throttled": "whoever does is throttled already",
        "tenant_floods": "one tenant is most of what waits, and more comes",
        "lane_floods": "a late lane gets more than leaves it",
    },
    Step.CRITICAL: {
        "none": "there is no such lane",
        "on_target": "it is in time",
        "favoured": "it is late, and its slots are set already",
        "late": "it is late",
        "at_gates": "it is late, and most of it waits at gates",
        "paused": "it is paused",
        "not_served": "nobody serves it",
    },
    Step.DRAIN: {
        "empty": "nothing is in the backlog",
        "draining": "it comes in at the rate that is declared",
        "may_be_faster": "it comes in more slowly than is declared, and nothing is late",
        "slowed": "something is late, and it comes in slowly already",
        "held_back": "something is late, and it is not drained",
        "too_fast": "something is late, and it comes in faster than it should",
        "off": "nothing is late, and it is not drained",
        "no_rate": "no worker has declared a rate",
        "no_worker": "no worker is alive to drain it",
    },
    Step.RETRIES: {
        "calm": "no task and code stands out",
        "calmed": "there is a storm, and its retries are set already",
        "storm": "many retries of one task and code wait",
    },
    Step.LETTERS: {
        "none": "there is none",
        "some": "there are some",
        "surge": "many died of one cause within the hour, or many die now",
    },
    Step.REPLAY: {
        "nothing": "nothing died within the hour",
        "not_yet": "what they died of may still be there",
        "may_be_tried": "nothing says that the cause is still there",
    },
    Step.NOTE: {
        "nothing_set": "no operator has set anything",
        "set": "settings of operators are in force",
    },
}
