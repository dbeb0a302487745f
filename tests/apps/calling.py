"""An app whose handlers call a dependency from each place where handlers run."""

from __future__ import annotations

from streamworker import App, Context, Dependency

app = App("calling", dependencies={"carrier": Dependency(), "mail": Dependency()})


@app.task
async def in_the_loop(ctx: Context) -> None:
    async with ctx.dependency("carrier"):
        pass


@app.task
def in_a_thread(ctx: Context) -> None:
    with ctx.dependency("carrier"):
        pass


@app.task(run_in="process")
async def in_a_process(ctx: Context) -> None:
    async with ctx.dependency("carrier"):
        pass
