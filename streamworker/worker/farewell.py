"""How a worker stops so that nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio

from streamworker.core.errors import StreamworkerError
from streamworker.core.text import counted
from streamworker.worker.ends import HandedBack
from streamworker.worker.running import Stop

if TYPE_CHECKING:
    from streamworker.worker.parts import Parts

log = logging.getLogger("streamworker.worker")

#: Seconds for what is still to be told to Redis once the handlers have ended.
FAREWELL = 10.0


async def farewell(parts: Parts, grace: float, at_once: asyncio.Event) -> None:
    """Stop claiming, let what runs end, hand back the rest, tell Redis; in this order.

    What runs has `grace` seconds, or until `at_once` is set.
    """
    handed_back = HandedBack()
    parts.pump.tellers.append(handed_back)
    parts.crons.stop()
    parts.pump.stop_claiming()
    parts.reader.stop()
    # anyio's limits: in a task that was cancelled, asyncio.timeout of Python before 3.11.3 raises
    # CancelledError when its time is over, and the good-bye would end there.
    with anyio.move_on_after(grace):
        await _first(parts.pump.idle(), at_once.wait())
    now = asyncio.get_running_loop().time()
    left = parts.pump.holdings.running()
    for running in left:
        running.tell(Stop.SHUTDOWN, now)
    if left:
        await _until_told(parts)
    problem: object = "it did not answer in time"
    with anyio.move_on_after(FAREWELL) as limit:
        try:
            await parts.pump.drained()
            if parts.dropping:
                await asyncio.wait(parts.dropping)
            # Its last read is over: what it got is in our pending list (R18).
            await parts.reader.ended.wait()
            await parts.pump.hand_back()
            parts.keeper.stop()
            await parts.keeper.ended.wait()  # or it might elect itself again, behind our back
            parts.heartbeat.stop()  # it would take the key that we remove now for one that was lost
            await _forget(parts)
            problem = None
        except StreamworkerError as error:
            problem = error
    if problem is not None or limit.cancelled_caught:
        log.warning("not everything could be told to Redis; recovery will find it: %s", problem)
    parts.keeper.stop()
    log.info("worker %s: ended, %s handed back", parts.worker.id, counted(handed_back.count, "job"))


async def _until_told(parts: Parts) -> None:
    """Give cancelled handlers a moment; those that ignore it are handed back over their heads."""
    with anyio.move_on_after(1.0):
        await parts.pump.idle()
    for running in parts.pump.holdings.running():
        log.warning(
            "job %s of task %s did not end when cancelled (cancel_unresponsive); handed back",
            running.claim.job_id,
            running.task_name,
        )
        parts.runner.overrule(running)


async def _forget(parts: Parts) -> None:
    session = parts.pump.session
    await session.forget()
    for role in ("keeper", "quarantine", "collector"):
        key = session.keys.elect(role)
        if await session.link.call("GET", key) == parts.worker.id.encode():
            await session.link.call("DEL", key)


async def _first(*awaitables: object) -> None:
    """Return when the first of them is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
