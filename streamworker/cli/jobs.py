"""`streamworker jobs`: list jobs, look at one, cancel it, or let it run before its time."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import AppName, Json, RedisUrl, note_nobody, on_queue, open_queue, settings_of
from streamworker.cli.output import counted, emit_json, print_facts, print_table, say
from streamworker.core.states import Status

if TYPE_CHECKING:
    from streamworker.ops.inspect import JobReport

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List jobs, look at one, cancel or hasten it."
)

#: Records between two lines of progress.
PROGRESS_EVERY = 20_000

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as enqueue printed it.")]


@app.command("list")
def list_jobs(
    status: Annotated[
        Status | None, typer.Option("--status", metavar="S", help="Only in this state, such as queued.")
    ] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="T", help="Only of this task.")] = None,
    lane: Annotated[str | None, typer.Option("--lane", metavar="L", help="Only in this lane.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="N", help="Only of this tenant.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="K", help="Only with this idempotency key.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="K", help="Jobs at most.", min=1)] = 50,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """List jobs: those that are open, and those that ended in the last minutes, newest first.

    Looks through the names of all records, which takes a while with millions of jobs, and says so if there
    may be more than it shows.

    Example: streamworker jobs list --task update_shipment --status processing
    """
    from streamworker.ops import listing

    settings = settings_of(app, redis_url)
    which = listing.JobFilter(status, task, lane, tenant, key)
    told = 0

    def progress(scanned: int, found: int) -> None:
        nonlocal told
        if sys.stderr.isatty() and scanned - told >= PROGRESS_EVERY:
            told = scanned
            say(f"{scanned} records looked at, {found} jobs found …")

    found = on_queue(settings, lambda queue: listing.list_jobs(queue, which, limit=limit, progress=progress))
    if as_json:
        emit_json(found.json())
        return
    print_table(
        ["id", "task", "lane", "tenant", "status", "#attempt", "error", "enqueued"],
        [
            (
                row["id"],
                row["task"],
                row["lane"],
                row["tenant"],
                row["status"],
                row["attempt"],
                row["error_code"],
                row["enqueued_at"],
            )
            for row in found.json()["items"]
        ],
    )
    cut = "" if found.complete else "; there may be more: narrow it by options, or raise --limit"
    say(f"{counted(len(found.jobs), 'job')}, {counted(found.scanned, 'record')} looked at{cut}")
    if not found.scanned:
        note_nobody(settings)
    if found.unreadable:
        say(f"{counted(found.unreadable, 'record')} cannot be read; see `streamworker doctor`")


@app.command()
def show(job_id: JobId, app: AppName = None, redis_url: RedisUrl = None, as_json: Json = False) -> None:
    """Show what a job is, what it came to, and every move it made.

    Once the record has expired, Postgres tells, where STREAMWORKER_POSTGRES_DSN says that there is one; else
    the dead letter and the log tell what they still have.

    Example: streamworker jobs show 01a22d35-48c5-7000-ab2c-b8855784618b
    """
    from streamworker.ops import inspect

    settings = settings_of(app, redis_url)

    found = on_queue(settings, lambda queue: inspect.report(queue, job_id))
    if as_json:
        emit_json(found.json())
    else:
        _print(found)


def _print(report: JobReport) -> None:
    shown = report.json()
    error = f"{report.error_class}, {report.error_code}" if report.error_code else None
    facts: list[tuple[str, object]] = [
        ("job", report.id),
        ("task", report.task),
        ("lane", report.lane),
        ("tenant", report.tenant),
        ("key", report.key),
        ("correlation id", report.correlation_id),
        ("status", report.status),
        ("attempt", report.attempt),
        ("error", error),
        ("", report.error),
        ("result", None if report.result is None else json.dumps(report.result, ensure_ascii=False)),
        ("enqueued", shown["enqueued_at"]),
        ("started", shown["started_at"]),
        ("finished", shown["finished_at"]),
    ]
    always = {"job", "task", "lane", "status", "attempt"}
    print_facts((name, value) for name, value in facts if name in always or value not in (None, ""))
    print()
    print_table(
        ["#version", "from", "to", "at", "reason", "error", "due", "worker", "#fence"],
        [
            (
                move["version"],
                move["from"],
                move["to"],
                move["at"],
                move["reason"],
                move.get("error_code"),
                move.get("due_at"),
                move["worker"],
                move["fence"] or None,
            )
            for move in shown["history"]
        ],
    )
    if not report.history.complete:
        say("note: the log no longer has every move of this job")


@app.command()
def cancel(job_id: JobId, app: AppName = None, redis_url: RedisUrl = None, as_json: Json = False) -> None:
    """Cancel a job. One that waits ends at once; the handler of one that runs is told.

    A job that is over already is left as it is, with exit code 1; one that was cancelled before is what was
    asked for, with 0.

    Example: streamworker jobs cancel 01a22d35-48c5-7000-ab2c-b8855784618b
    """
    from streamworker.client import cancel_job, view_of
    from streamworker.core.ids import check_job_id

    settings = settings_of(app, redis_url)
    check_job_id(job_id)

    async def act() -> tuple[str, str]:
        async with open_queue(settings) as queue:
            reply = await cancel_job(queue, job_id)
            status = (await view_of(queue, job_id)).status if reply == "ALREADY" else ""
            return reply, status

    reply, status = asyncio.run(act())
    if reply == "ALREADY":
        raise CommandFailed(f"job {job_id} is over already: {status}; nothing was cancelled")
    if as_json:
        emit_json({"id": job_id, "outcome": "cancelled" if reply == "OK" else "flagged"})
    elif reply == "OK":
        print(f"{job_id} is cancelled")
    else:
        print(f"{job_id} is running: its handler is told within a heartbeat")


@app.command()
def hasten(
    job_ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids of jobs, as enqueue printed them.")
    ],
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> int:
    """Let jobs that wait for a retry, or for the end of a delay, run now.

    Attempts, deadline and all else of them stay as they are. A job that waits for no time is left as it is;
    if none of them does, the exit code is 1.

    Example: streamworker jobs hasten 01a22d35-48c5-7000-ab2c-b8855784618b
    """
    from streamworker.core.ids import check_job_id
    from streamworker.request import actor
    from streamworker.store.scripts import BATCH

    settings = settings_of(app, redis_url)
    wanted = list(dict.fromkeys(check_job_id(each) for each in job_ids))

    async def act() -> list[str]:
        async with open_queue(settings) as queue:
            batches = [wanted[start : start + BATCH] for start in range(0, len(wanted), BATCH)]
            return [word for batch in batches for word in await queue.hasten(batch, actor=actor())]

    outcomes = dict(zip(wanted, asyncio.run(act()), strict=True))
    if as_json:
        emit_json(
            {"items": [{"id": each, "outcome": _OUTCOMES.get(word, word)} for each, word in outcomes.items()]}
        )
    else:
        for each, word in outcomes.items():
            if word == "OK":
                print(f"{each} is due now")
            elif word == "GONE":
                say(f"{each}: there is no such job, or it ended long ago")
            else:
                say(f"{each} waits for no time: it is {word}")
    return 0 if "OK" in outcomes.values() else 1


_OUTCOMES = {"OK": "due", "GONE": "missing"}
