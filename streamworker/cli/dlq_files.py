"""`streamworker dlq edit`, `export` and `import`: dead letters in an editor and in files."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from streamworker.cli.dlq_moves import SHOWN
from streamworker.cli.edge import CommandFailed, read_json
from streamworker.cli.letters import Asked, Chosen, JobIds, described
from streamworker.cli.options import AppName, Json, RedisUrl, Yes, on_queue, open_queue, settings_of
from streamworker.cli.output import counted, emit_json, say
from streamworker.core.text import inert_json

if TYPE_CHECKING:
    from streamworker.ops.dlq import Edit


def edit(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the dead job.")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=JSON", help="Give one argument this value; repeat it."),
    ] = None,
    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="All arguments, as a JSON object.")
    ] = None,
    yes: Yes = False,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> int:
    """Change the arguments with which a dead job will be replayed; without options in $EDITOR.

    The job stays dead until it is replayed, in its lane and behind the gates that it had. What was changed
    stands in the log.

    Example: streamworker dlq edit 01a22d35-48c5-7000-ab2c-b8855784618b --set total=99
    """
    from dataclasses import replace

    from streamworker.ops import dlq
    from streamworker.request import actor

    settings = settings_of(app, redis_url)

    async def look() -> Edit:
        async with open_queue(settings) as queue:
            return await dlq.prepare(queue, job_id)

    async def act(wanted: Edit) -> tuple[dict[str, list[Any]], str | None]:
        async with open_queue(settings) as queue:
            changes = await dlq.edit(queue, wanted, actor=actor())
            return changes, await dlq.objection(queue, wanted)

    found = asyncio.run(look())
    wanted = replace(found, args=_changed(found, sets, args))
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        for name, (old, new) in wanted.changes.items():
            say(f"{name}: {json.dumps(old, ensure_ascii=False)} -> {json.dumps(new, ensure_ascii=False)}")
        print("keep this? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            say("nothing was changed")
            return 1
    changes, objection = asyncio.run(act(wanted))
    if objection is not None:
        say(f"warning: a replay would be refused: {objection}")
    if as_json:
        emit_json({"id": job_id, "changes": changes})
    else:
        say(f"{counted(len(changes), 'argument')} changed; {dlq.replay_command(job_id, found.letter.epoch)}")
    return 0


def _changed(found: Edit, sets: list[str] | None, args: str | None) -> dict[str, Any]:
    if sets and args is not None:
        raise CommandFailed("--set changes some arguments, --args gives all: one of them", code=2)
    if args is not None:
        return _object(args, "--args")
    if sets:
        changed = dict(found.envelope.args)
        for each in sets:
            name, equals, value = each.partition("=")
            if not name or not equals:
                raise CommandFailed(f"--set {each!r}: write NAME=JSON, such as total=99", code=2)
            changed[name] = _json(value, f"--set {name}")
        return changed
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandFailed("no terminal for an editor: say what to change with --set or --args", code=2)
    text = inert_json(json.dumps(found.envelope.args, indent=2, ensure_ascii=False))
    return _object(_in_editor(text), "the file")


def _in_editor(text: str) -> str:
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory(prefix="streamworker-") as folder:
        file = Path(folder) / "arguments.json"
        file.write_text(text + "\n", encoding="utf-8")
        try:
            ended = subprocess.run([*command, str(file)], check=False).returncode
        except OSError as error:
            raise CommandFailed(f"the editor {command[0]!r} does not start: {error}; set EDITOR") from None
        if ended:
            raise CommandFailed(f"the editor ended with {ended}; nothing was changed")
        return file.read_text(encoding="utf-8")


def _json(text: str, what: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise CommandFailed(f"{what}: {error}; texts need quotes, such as '\"a text\"'", code=2) from None


def _object(text: str, what: str) -> dict[str, Any]:
    found = _json(text, what)
    if not isinstance(found, dict):
        raise CommandFailed(f"{what}: arguments are a JSON object", code=2)
    return found


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
