"""The app of the simulation: tasks that do what their jobs say, one without gates and one for each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from streamworker import (
    App,
    Concurrency,
    Context,
    Dependency,
    Lane,
    PersistentError,
    Rate,
    Retry,
    Snooze,
    TransientError,
)
from streamworker.core import codec
from streamworker.core.job import encode_envelope
from streamworker.store.scripts import NewJob
from tests.chaos.history import Told
from tests.simulation.loop import HOST
from tests.simulation.story import Story

LEASE = 15.0
LANES = {"priority": Lane(reserved=1, weight=4), "normal": Lane(weight=1)}
#: Seconds that one attempt may take: less than the longest acts.
TIMEOUT = 40
#: The task without gates, and those with some.
TASK = "act"
GATED = ("ordered", "strict", "shared", "metered", "called")
#: What each task allows; the checker holds the scripts to it.
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


Result = dict[str, int] | Snooze
#: What a job carries: for each of its starts what it does, and for how long.
Plan = list[list[str | float]]


def build(url: str, namespace: str) -> App:
    """The app, whose handlers write into the story of the loop they run in."""
    app = App(
        "simulation",
        lanes=LANES,
        redis_url=url,
        namespace=namespace,
        lease=LEASE,
        dependencies={"carrier": Dependency(concurrency=1)},
    )
    retry = Retry.schedule("2s", "10s", "20s", unknown=["5s", "20s"])

    @app.task(name=TASK, retry=retry, timeout=TIMEOUT)
    async def act(ctx: Context, plan: Plan, thing: int) -> Result:
        return await do(ctx, plan)

    @app.task(retry=retry, timeout=TIMEOUT, entity="thing:{thing}")
    async def ordered(ctx: Context, plan: Plan, thing: int) -> Result:
        return await do(ctx, plan, f"entity:thing:{thing}")

    @app.task(retry=retry, timeout=TIMEOUT, entity="part:{thing}", entity_order="strict")
    async def strict(ctx: Context, plan: Plan, thing: int) -> Result:
        return await do(ctx, plan, f"entity:part:{thing}")

    @app.task(retry=retry, timeout=TIMEOUT, limits=[Concurrency("task", 2)])
    async def shared(ctx: Context, plan: Plan, thing: int) -> Result:
        return await do(ctx, plan, "concurrency:task:shared")

    @app.task(retry=retry, timeout=TIMEOUT, limits=[Rate("task", "12/m", burst=1)])
    async def metered(ctx: Context, plan: Plan, thing: int) -> Result:
        return await do(ctx, plan, "rate:task:metered")

    @app.task(retry=retry, timeout=TIMEOUT, uses=["carrier"], entity="thing:{thing}")
    async def called(ctx: Context, plan: Plan, thing: int) -> Result:
        gates = ("pause:dependency:carrier", f"entity:thing:{thing}", "concurrency:dependency:carrier")
        return await do(ctx, plan, *gates)

    return app


async def do(ctx: Context, plan: Plan, *holds: str) -> Result:
    """What the plan says for this start; `holds`: the gates by which it runs."""
    host, story = HOST.get(), STORY[asyncio.get_running_loop()]
    assert host is not None
    before = story.start(host, ctx.job_id, ctx.attempt, ctx.fence, holds)
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


#: The story of each loop that runs.
STORY: dict[asyncio.AbstractEventLoop, Story] = {}


def new_job(
    app: App,
    job_id: str,
    task: str,
    plan: Sequence[tuple[Act, float]],
    thing: int,
    *,
    lane: str,
    tenant: str,
    **more: Any,
) -> NewJob:
    """A job as a producer sends it.

    `plan`: for each of its starts what it does, and how long; the last for all that follow.
    """
    args: dict[str, Any] = {"plan": [[str(act), seconds] for act, seconds in plan], "thing": thing}
    gates = app.tasks[task].gates
    line = "" if gates is None else gates.line(args, tenant=tenant or None, lane=lane, number=0)
    envelope = encode_envelope(task, codec.encode_args(args))
    return NewJob(job_id, task, lane, envelope, tenant=tenant, gates=line, **more)
