"""The check of `doctor` on the sentinels that the URL names: would a failover be made, and found?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from streamworker.ops.checks import Finding, ok, problem, warning
from streamworker.store.dialling import ask_each
from streamworker.store.replies import ReplyError
from streamworker.store.sentinels import sentinels_of

#: How many are named at least: of two, one alone decides nothing.
LEAST = 3


async def check(url: str) -> list[Finding]:
    """One finding if the URL names sentinels, none else."""
    sentinels = sentinels_of(url)
    if sentinels is None:
        return []
    named, quorum = await asyncio.gather(
        ask_each(sentinels, *sentinels.question),
        ask_each(sentinels, "SENTINEL", "CKQUORUM", sentinels.service),
    )
    return [judge(named, quorum)]


def judge(named: Mapping[str, Any], quorum: Mapping[str, Any]) -> Finding:
    """What their answers come to: the primary's address or None, and OK; or the error of each."""
    silent = [where for where, answer in named.items() if isinstance(answer, Exception)]
    primaries = {where: _shown(answer) for where, answer in named.items() if where not in silent}
    if len(set(primaries.values())) > 1:
        told = ", ".join(f"{where} names {primary}" for where, primary in primaries.items())
        return problem(
            "sentinels",
            f"they name different primaries: {told}",
            "wait if a failover goes on; else look at the sentinels that cannot reach the others",
        )
    lacking = [str(answer) for answer in quorum.values() if isinstance(answer, ReplyError)]
    if lacking:
        return problem(
            "sentinels", lacking[0], "start the sentinels that are missing: no failover would be made"
        )
    if silent:
        return warning(
            "sentinels",
            f"{len(silent)} of {len(named)} do not answer: {named[silent[0]]}",
            "start them, or take them out of the URL: each costs a second while it is asked first",
        )
    if len(named) < LEAST:
        return warning(
            "sentinels",
            f"the URL names {len(named)}: while they are gone nobody finds the primary",
            f"name {LEAST} at least, on machines of their own",
        )
    return ok("sentinels", f"{len(named)} name {next(iter(primaries.values()))}, and would agree on another")


def _shown(answer: Any) -> str:
    return "none" if answer is None else ":".join(part.decode() for part in answer)
