"""May this letter be replayed? Each check is asked before anything changes, and leaves its reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from streamworker.core.job import Envelope
from streamworker.ops.dlq.letters import DeadLetter
from streamworker.store import manifest
from streamworker.store.manifest import Declaration
from streamworker.store.queue import Queue


@dataclass(frozen=True, slots=True)
class Skipped:
    """A letter that was left where it is. `reason` is one word, `detail` what a person needs beside it."""

    job_id: str
    reason: str
    detail: str = ""


#: Says why a letter should not be replayed, or None.
Check = Callable[[DeadLetter], Skipped | None]


def whole(letter: DeadLetter) -> Skipped | None:
    """What the producer sent is still there."""
    if letter.envelope and letter.task:
        return None
    return Skipped(letter.job_id, "no_envelope", "its arguments are gone")


def first_time(letter: DeadLetter) -> Skipped | None:
    """It was not replayed before: what failed again after a replay wants another look."""
    if letter.epoch == 0:
        return None
    return Skipped(
        letter.job_id, "replayed_before", "it failed again after a replay; --again replays it once more"
    )


def replay_command(job_id: str, epoch: int) -> str:
    """The command that replays one letter: what was replayed before only with `--again`."""
    return f"streamworker dlq replay {job_id}" + (" --again" if epoch else "")


def by_manifest(declared: Mapping[str, Declaration]) -> Check:
    """The tasks that workers published: the task must be among them, and its arguments by their names."""

    def check(letter: DeadLetter) -> Skipped | None:
        known = declared.get(letter.task)
        if known is None:
            return Skipped(letter.job_id, "unknown_task", f"no worker has published a task {letter.task!r}")
        try:
            given = Envelope.decode(letter.envelope).args.keys()
        except ValueError:
            return Skipped(letter.job_id, "no_envelope", "its arguments cannot be read")
        wrong = misfit(known, given)
        return None if wrong is None else Skipped(letter.job_id, "bad_arguments", wrong)

    return check


def misfit(known: Declaration, given: Collection[str]) -> str | None:
    """What is wrong with arguments of these names for the task; None: nothing."""
    missing = [name for name in known.required if name not in given]
    if missing:
        return f"{missing[0]!r} is missing"
    unknown = [] if known.takes_more else [name for name in given if name not in known.arguments]
    return f"the task takes no {unknown[0]!r}" if unknown else None


async def published(queue: Queue) -> dict[str, Declaration]:
    """What stands in the manifest, by task; {} when no worker was ever here."""
    found = {}
    raw = await queue.caller.command("HGETALL", queue.keys.meta)
    for name, value in zip(raw[::2], raw[1::2], strict=True):
        text = name.decode("utf-8", "replace")
        if text.startswith(manifest.FIELD):
            task = text.removeprefix(manifest.FIELD)
            declaration = manifest.read(task, value)
            if declaration is not None:
                found[task] = declaration
    return found


async def key_taken(queue: Queue, letter: DeadLetter) -> Skipped | None:
    """Whether the letter's key belongs to another job by now: then a replay would do its work again."""
    if not letter.key_id:
        return None
    value = await queue.caller.command("GET", queue.keys.key(letter.key_id))
    holder, _, state = (value or b"").decode().partition(" ")
    if not holder or holder == letter.job_id:
        return None
    if state.endswith(" open") and not await queue.caller.command("EXISTS", queue.keys.job(holder)):
        return None
    return taken_by(letter.job_id, holder)


def taken_by(job_id: str, holder: str) -> Skipped:
    """The reason, also for what the script says."""
    return Skipped(job_id, "key_taken", f"its key is held by job {holder}")


async def completed(queue: Queue, waiting: list[DeadLetter]) -> dict[str, str]:
    """Of these letters, those whose key another job has completed by what Postgres knows, and that job.

    {} without Postgres. Raises PostgresUnavailable: what cannot be checked is not replayed.
    """
    keys = {letter.key_id for letter in waiting if letter.key_id}
    if queue.settings.postgres_dsn is None or not keys:
        return {}
    from streamworker.postgres import lookup

    done = await lookup.completed_keys(queue.settings, keys)
    return {
        letter.job_id: done[letter.key_id]
        for letter in waiting
        if letter.key_id in done and done[letter.key_id] != letter.job_id
    }
