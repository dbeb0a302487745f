"""`streamworker dlq export` and `import`: dead letters in files."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from streamworker.cli.dlq_moves import SHOWN
from streamworker.cli.edge import CommandFailed
from streamworker.cli.letters import Asked, Chosen, JobIds, described
from streamworker.cli.options import AppName, Json, RedisUrl, on_queue, open_queue, settings_of
from streamworker.cli.output import counted, emit_json, say


@described
def export(
    asked: Asked,
    ids: JobIds = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters there are.")] = False,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Write there, all or nothing; else to stdout."),
    ] = None,
    app: AppName = None,
    redis_url: RedisUrl = None,
) -> None:
    """Write dead letters as lines of JSON, with all that a replay needs. Nothing is taken away.

    The last line says how many they are, so that an import notices a file that was cut.

    Example: streamworker dlq export --all --file letters.jsonl
    """
    from streamworker.ops import dlq

    settings = settings_of(app, redis_url)
    chosen = Chosen.of(ids, asked, everything)

    async def write() -> int:
        count = 0
        with _target(file) as out:
            async with open_queue(settings) as queue:
                async for line in dlq.export(queue, await chosen.which(queue)):
                    out.write(line)
                    count += 1
            out.write(dlq.end_line(count))
            out.flush()
        return count

    try:
        count = asyncio.run(write())
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise CommandFailed(f"{file}: {error.strerror}") from None
    say(f"{counted(count, 'dead letter')} exported")


@contextmanager
def _target(file: Path | None) -> Iterator[BinaryIO]:
    """Where an export goes. A file is replaced once all is written: what it had may be the only copy."""
    if file is None:
        yield sys.stdout.buffer
        return
    target = file.resolve()
    if target.exists() and not target.is_file():  # a pipe, say
        with target.open("wb") as out:
            yield out
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def bring_back(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Lines that `dlq export` wrote; - reads stdin.")
    ],
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Put exported dead letters back; they are replayed only when somebody says so.

    The whole file is checked first. Jobs that have a letter, or are not dead, are left alone.

    Example: streamworker dlq import letters.jsonl
    """
    from streamworker.ops import dlq
    from streamworker.request import actor

    settings = settings_of(app, redis_url)
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from None
    found, whole = dlq.read_lines(data.splitlines())
    if not whole:
        say("note: the end of an export is missing: an older version wrote this, or it was cut")

    done = on_queue(settings, lambda queue: dlq.bring_back(queue, found, actor=actor()))
    if as_json:
        emit_json(done.json())
        return
    for job_id, why in list(done.skipped.items())[:SHOWN]:
        say(f"skipped {job_id}: {'it has a letter' if why == 'already' else 'its job is not dead'}")
    if len(done.skipped) > SHOWN:
        say(f"skipped {len(done.skipped)} in all; --json lists them")
    print(f"{done.imported} imported")
