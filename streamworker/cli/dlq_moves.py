"""`dlq replay` and `discard`, and `edit` of many: what is asked before, shown meanwhile and said after."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.letters import Asked, Chosen, JobIds, described
from streamworker.cli.options import AppName, DryRun, Json, Reason, RedisUrl, Yes, open_queue, settings_of
from streamworker.cli.output import counted, emit_json, say

if TYPE_CHECKING:
    from streamworker.ops.dlq import Check, Moved, Which
    from streamworker.settings import Settings
    from streamworker.store.queue import Queue

Everything = Annotated[
    bool, typer.Option("--all", help="All dead letters there are; their number has to be typed, or --count.")
]
Count = Annotated[
    int | None, typer.Option("--count", metavar="N", help="With --all: how many you say they are.")
]
#: Letters whose reason is printed one by one; of more, how many there were of each.
SHOWN = 20

Act = Callable[["Queue", "Which", bool], Awaitable["Moved"]]


@described
def replay(
    asked: Asked,
    ids: JobIds = None,
    everything: Everything = False,
    count: Count = None,
    check: Annotated[
        str | None,
        typer.Option(
            "--check", metavar="MODULE:APP", help="Skip what this app does not know or could not call."
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also those that failed again after a replay.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", help="Replay so many at most.", min=1)
    ] = None,
    rate: Annotated[float, typer.Option("--rate", metavar="R", help="Replay so many a second.")] = 200.0,
    stop_at: Annotated[
        float,
        typer.Option("--stop-at", metavar="SHARE", help="Stop when more of those that ran failed again."),
    ] = 0.5,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> int:
    """Send dead jobs back into their lanes, with fresh attempts; by id, or all that the options describe.

    Look first, with --dry-run. Skipped are jobs of tasks that no worker has published or whose arguments do
    not fit them, those whose key another job has or has completed, those that were replayed before, and those
    that somebody dealt with meanwhile. Ended early, the same command goes on. Exit code 1 when it stopped by
    itself, or when none of the named jobs could be replayed.

    Example: streamworker dlq replay --task invoice --dry-run
    """
    from streamworker.ops import dlq
    from streamworker.request import actor

    settings = settings_of(app, redis_url)
    chosen = Chosen.of(ids, asked, everything)
    pace = dlq.Pace(limit=limit, rate=rate, stop_at=stop_at)
    against = None if check is None else check_against(check)

    async def act(queue: Queue, which: Which, dry: bool) -> Moved:
        with _progress(wanted=not dry) as told:
            return await dlq.replay(
                queue, which, actor=actor(), dry_run=dry, check=against, again=again, pace=pace,
                reason=reason, progress=told,
            )  # fmt: skip

    return carry_out(settings, ("replay", "replayed"), act, chosen, count, dry_run, yes, as_json)


@described
def discard(
    asked: Asked,
    ids: JobIds = None,
    everything: Everything = False,
    count: Count = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> int:
    """Take dead letters out of the list, for good; by id, or all that the options describe.

    The jobs stay failed, and the log keeps who decided so.

    Example: streamworker dlq discard --code expired --older 7d --dry-run
    """
    from streamworker.ops import dlq
    from streamworker.request import actor

    settings = settings_of(app, redis_url)
    chosen = Chosen.of(ids, asked, everything)

    async def act(queue: Queue, which: Which, dry: bool) -> Moved:
        return await dlq.discard(queue, which, actor=actor(), dry_run=dry, reason=reason)

    return carry_out(settings, ("discard", "discarded"), act, chosen, count, dry_run, yes, as_json)


def carry_out(
    settings: Settings,
    verbs: tuple[str, str],
    act: Act,
    chosen: Chosen,
    count: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Ask, act and tell; returns the exit code. `verbs` as in (replay, replayed)."""
    verb, done = verbs

    async def once(dry: bool) -> Moved:
        async with open_queue(settings) as queue:
            return await act(queue, await chosen.which(queue), dry)

    if count is not None and not chosen.everything:
        raise CommandFailed("--count belongs to --all", code=2)
    if not dry_run and chosen.everything:
        _agree_on_all(verb, asyncio.run(once(True)).eligible, count)
    elif not dry_run and not yes and len(chosen.ids) != 1 and not _agreed(verb, once):
        say("nothing was changed")
        return 1
    moved = asyncio.run(once(dry_run))
    if as_json:
        emit_json(moved.json(done))
    else:
        print(f"{moved.eligible} could be {done}" if dry_run else f"{moved.moved} {done}")
        _tell_skipped(moved)
        if moved.stopped:
            say(f"stopped: {moved.stopped}")
    reached = moved.eligible if dry_run else moved.moved
    return 1 if moved.stopped or (chosen.ids and not reached) else 0


def _agreed(verb: str, once: Callable[[bool], Coroutine[None, None, Moved]]) -> bool:
    """Ask the person at the terminal. Raises CommandFailed when there is none."""
    if not somebody_is_there():
        raise CommandFailed(
            f"this would {verb} several dead letters and nobody is at the terminal to ask; "
            "add --yes, or look first with --dry-run",
            code=2,
        )
    number = asyncio.run(once(True)).eligible
    if not number:
        return True
    return _answer(f"{verb} {counted(number, 'dead letter')}? [y/N] ").lower() in ("y", "yes")


def _agree_on_all(verb: str, eligible: int, count: int | None) -> None:
    """Without any filter their number is asked for. Raises CommandFailed when it is another."""
    if count is None:
        if not somebody_is_there():
            raise CommandFailed(
                f"this would {verb} all {counted(eligible, 'dead letter')}: add --count {eligible}",
                code=2,
            )
        said = _answer(f"{verb} all {counted(eligible, 'dead letter')}? Type their number: ")
        count = int(said) if said.isdecimal() else -1
    if count != eligible:
        raise CommandFailed(f"there are {eligible} to {verb}, another number was given; nothing was changed")


def somebody_is_there() -> bool:
    """Whether anybody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _answer(question: str) -> str:
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def _tell_skipped(moved: Moved) -> None:
    for skipped in moved.skipped[:SHOWN]:
        say(f"skipped {skipped.job_id}: {skipped.reason}{': ' if skipped.detail else ''}{skipped.detail}")
    if len(moved.skipped) > SHOWN:
        counts: dict[str, int] = {}
        for skipped in moved.skipped:
            counts[skipped.reason] = counts.get(skipped.reason, 0) + 1
        listed = ", ".join(f"{number} {why}" for why, number in sorted(counts.items()))
        say(f"skipped {len(moved.skipped)} in all: {listed}; --json lists them")


@contextmanager
def _progress(*, wanted: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar at a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield lambda moved, of: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying", total=None)
        yield lambda moved, of: bar.update(task, completed=moved, total=of)


def check_against(target: str) -> Check:
    """A check by the app `module:app`: the task must be known and the arguments must fit."""
    from streamworker.cli.target import load_app
    from streamworker.core.errors import UnknownTask
    from streamworker.core.signature import BadArguments
    from streamworker.ops.dlq import DeadLetter, Skipped

    known = load_app(target)

    def check(letter: DeadLetter) -> Skipped | None:
        envelope = letter.envelope_or_none()
        if envelope is None:
            return Skipped(letter.job_id, "no_envelope", "its arguments cannot be read")
        try:
            known.find(letter.task).signature.check(envelope.args)
        except UnknownTask as error:
            return Skipped(letter.job_id, "unknown_task", str(error))
        except BadArguments as error:
            return Skipped(letter.job_id, "bad_arguments", str(error))
        return None

    return check
