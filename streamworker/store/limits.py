"""Tells the scripts which limits the tasks declare, and which lanes are urgent."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from streamworker.store import scripts
from streamworker.store.connection import Argument, Link, ReplyError
from streamworker.store.keys import Keys

log = logging.getLogger("streamworker")


async def declare(link: Link, keys: Keys, lanes: Iterable[str], limits: Mapping[str, str]) -> None:
    """Let these figures hold for all jobs, queued ones too, as far as no operator has set others.

    `lanes` from the urgent to the patient: at a gate, the urgent come first. What cannot be declared is
    warned of: then each job obeys the figures that it carries. Raises ConnectionLost.
    """
    rows: list[Argument] = [word for limit in sorted(limits.items()) for word in limit]
    call = scripts.declare(clock="", lanes=" ".join(lanes), rows=rows)
    try:
        await link.script(call.script, keys.tag, *call.argv)
    except ReplyError as error:
        log.warning("the limits of the tasks were not declared, so jobs that wait keep theirs: %s", error)
