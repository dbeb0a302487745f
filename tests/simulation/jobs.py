"""The app of the simulation: one task, whose jobs carry what they will do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum

from streamworker import App, Context, Lane, PersistentError, Retry, Snooze, TransientError
from streamworker.core import codec
from streamworker.core.job import encode_envelope
from tests.chaos.history import Told
from tests.simulation.loop import HOST
from tests.simulation.story import Story

LEASE = 15.0
LANES = {"priority": Lane(reserved=1, weight=4), "normal": Lane(weight=1)}
#: Seconds that one attempt may take: less than the longest acts.
TIMEOUT = 40
TASK = "act"
#: What `TASK` allows; the checker holds the scripts to it.
ATTEMPTS = 4


class Act(StrEnum):
    """What a handler does."""

    RETURN = "return"
    TRANSIENT = "transient"
    BUG = "bug"  # an error of no known class
    REFUSE = "refuse"  # a persistent error
    SNOOZE = "snooze"
    DEAF = "deaf"  # it does not end when it is cancelled, and returns
    DIE = "die"  # its process dies


def build(url: str, namespace: str) -> App:
    """The app, whose handlers write into the story of the loop they run in."""
    app = App("simulation", lanes=LANES, redis_url=url, namespace=namespace, lease=LEASE)

    @app.task(
        name=TASK,
        retry=Retry.schedule("2s", "10s", "20s", unknown=["5s", "20s"]),
        timeout=TIMEOUT,
    )
    async def act(ctx: Context, plan: list[list[str | float]]) -> dict[str, int] | Snooze:
        host, story = HOST.get(), STORY[asyncio.get_running_loop()]
        assert host is not None
        before = story.start(host, ctx.job_id, ctx.attempt, ctx.fence)
        what, seconds = plan[min(before, len(plan) - 1)]
        act = Act(str(what))
        try:
            await asyncio.sleep(float(seconds))
        except asyncio.CancelledError:
            if act is not Act.DEAF:
                story.note(f"{ctx.job_id} is cancelled (fence {ctx.fence})", host)
                raise
            await asyncio.sleep(float(seconds))
        match act:
            case Act.DIE:
                story.note(f"{ctx.job_id} kills its process (fence {ctx.fence})", host)
                host.kill()
                await asyncio.Future()
            case Act.TRANSIENT:
                story.end(host, ctx.job_id, ctx.fence, Told.RAISED)
                raise TransientError("not now")
            case Act.BUG:
                story.end(host, ctx.job_id, ctx.fence, Told.RAISED)
                raise LookupError("nobody thought of this")
            case Act.REFUSE:
                story.end(host, ctx.job_id, ctx.fence, Told.RAISED)
                raise PersistentError("never")
            case Act.SNOOZE:
                story.end(host, ctx.job_id, ctx.fence, Told.RETURNED)
                return Snooze(3)
        story.end(host, ctx.job_id, ctx.fence, Told.RETURNED)
        return {"starts": before + 1}

    return app


#: The story of each loop that runs.
STORY: dict[asyncio.AbstractEventLoop, Story] = {}


def envelope(plan: Sequence[tuple[Act, float]]) -> bytes:
    """What a job carries: for each of its starts what it does, and how long; the last for all that follow."""
    steps = [[str(act), seconds] for act, seconds in plan]
    return encode_envelope(TASK, codec.encode_args({"plan": steps}))
