"""Dead letters as lines of JSON, to be kept elsewhere, and back."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from streamworker.core.errors import InvalidArgument, StreamworkerError, check_code
from streamworker.core.ids import check_job_id
from streamworker.core.lane import check_lane_name
from streamworker.core.states import ErrorClass
from streamworker.core.template import check_task_name, check_tenant
from streamworker.ops.dlq.filters import Filters
from streamworker.ops.dlq.letters import LATEST, MAX_DIGITS, DeadLetter, entries, task_of
from streamworker.ops.dlq.moves import Which, batches
from streamworker.store import scripts
from streamworker.store.connection import Argument
from streamworker.store.events import pairs
from streamworker.store.queue import Queue

#: What the first field of each line says.
FORMAT = "streamworker.dead-letter.1"
#: And that of the last, which has the number of letters: without it, nobody could tell that a file was cut.
END = "streamworker.dead-letters.end.1"
#: Fields of a letter that are whole numbers, those that are moments in ms, and all that it has.
_NUMBERS = ("attempt", "starts", "strikes", "epoch", "version")
_MOMENTS = ("at", "dead_at")
#: Scripts count no further than to 2^53, and nobody can write a moment after the year 9999.
_LARGEST = 10**MAX_DIGITS - 1
_LINE, _WORD = re.compile(rb"[^\n]*"), re.compile(rb"\S*")
_WHOLE = re.compile(rb"0|[1-9][0-9]{0,14}")
_FIELDS = (
    *("id", "task", "lane", "tenant", "class", "code", "reason", "error", "attempt", "starts", "strikes"),
    *("epoch", "version", "at", "dead_at", "worker", "ky", "kf", "kw", "ms", "env", "ga"),
)


class BadLine(StreamworkerError):
    """A line that cannot stand there; the message names it. Nothing was imported."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import came to."""

    imported: int
    skipped: dict[str, str]  # job id -> already, or alive

    def json(self) -> dict[str, Any]:
        return {
            "imported": self.imported,
            "skipped": [{"id": job_id, "reason": why} for job_id, why in self.skipped.items()],
        }


async def export(queue: Queue, which: Which) -> AsyncIterator[bytes]:
    """One line for each letter that is meant, the oldest first, byte for byte as it is."""
    async for entry, flat in entries(queue):
        letter = DeadLetter.parse(entry, flat)
        if which.match(letter) if isinstance(which, Filters) else letter.job_id in which:
            yield _line(pairs(flat))


def end_line(count: int) -> bytes:
    """The last line of an export of so many letters."""
    return json.dumps({"format": END, "letters": count}, separators=(",", ":")).encode() + b"\n"


def _line(fields: dict[bytes, bytes]) -> bytes:
    told: dict[str, Any] = {"format": FORMAT}
    for name, value in fields.items():
        try:
            told[name.decode()] = value.decode()
        except UnicodeDecodeError:
            told[f"{name.decode('utf-8', 'replace')}_base64"] = base64.b64encode(value).decode()
    # Plain ASCII: the lines may go to a terminal, on which some characters act.
    return json.dumps(told, separators=(",", ":")).replace("\x7f", "\\u007f").encode() + b"\n"


def read_lines(lines: Iterable[bytes]) -> tuple[list[dict[str, bytes]], bool]:
    """The letters of such lines, and whether they end as an export does; empty lines are passed over.

    Several exports may follow each other. Raises BadLine.
    """
    found: list[dict[str, bytes]] = []
    ended, whole = 0, False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = orjson.loads(line)
            whole = isinstance(told, dict) and told.get("format") == END
            if not whole:
                found.append(_fields(told))
                continue
        except (ValueError, StreamworkerError, binascii.Error) as error:
            raise BadLine(f"line {number} is no exported dead letter: {error}") from None
        there, ended = len(found) - ended, len(found)
        if told.get("letters") != there:
            raise BadLine(
                f"line {number} says that {told.get('letters')} letters are before it, and there "
                f"{'is' if there == 1 else 'are'} {there}: the file was cut or edited; to import what is "
                "there, take that line out"
            )
    return found, whole


def _fields(told: Any) -> dict[str, bytes]:
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise ValueError(f"it does not begin with the format {FORMAT!r}")
    fields = {}
    for name, value in told.items():
        if name == "format":
            continue
        plain = name.removesuffix("_base64")
        if plain not in _FIELDS or not isinstance(value, str):
            raise ValueError(f"a letter has no field {name!r} with such a value")
        fields[plain] = value.encode() if plain == name else base64.b64decode(value, validate=True)
    for name in ("id", "task", "lane", "epoch", "env", "code", "class"):
        if name not in fields:
            raise ValueError(f"it has no {name}")
    if not fields["task"]:  # its record could not be read; what the producer sent says it
        with suppress(InvalidArgument):
            fields["task"] = check_task_name(task_of(fields["env"])).encode()
    _check(fields)
    return fields


def _check(fields: dict[str, bytes]) -> None:
    """What the record of the job is made of, and what lists are: a file may have been edited by hand."""
    check_job_id(fields["id"].decode())
    for name in (*_NUMBERS, *_MOMENTS):
        if not _WHOLE.fullmatch(fields.get(name, b"0")):
            raise ValueError(f"{name} is no whole number from 0 to {_LARGEST}")
    for name in _MOMENTS:
        if int(fields.get(name, b"0")) > LATEST:
            raise ValueError(f"{name} is after the year 9999")
    for name in ("kw", "ms"):
        if fields.get(name) and not _WHOLE.fullmatch(fields[name]):
            raise ValueError(f"{name} is neither empty nor a whole number from 0 to {_LARGEST}")
    check_lane_name(fields["lane"].decode())
    if fields["task"]:
        check_task_name(fields["task"].decode())
    if fields.get("tenant"):
        check_tenant(fields["tenant"].decode())
    ErrorClass(fields["class"].decode())
    check_code(fields["code"].decode())
    for name, allowed in (("ky", _LINE), ("kf", _WORD), ("ga", _LINE)):
        if not allowed.fullmatch(fields.get(name, b"")):
            raise ValueError(f"{name} has more than one {'word' if allowed is _WORD else 'line'}")


async def bring_back(queue: Queue, found: list[dict[str, bytes]], *, actor: str) -> Imported:
    """Put letters back whose jobs have none and are not alive."""
    # Of those whose records have expired, only the stream knows.
    present = {pairs(flat).get(b"id", b"") async for _, flat in entries(queue)}
    skipped = {fields["id"].decode(): "already" for fields in found if fields["id"] in present}
    imported = 0
    wanted = [fields for fields in found if fields["id"] not in present]
    for part in batches(wanted, lambda fields: sum(map(len, fields.values()))):
        rows: list[Argument] = []
        for fields in part:
            flat = [word for pair in fields.items() for word in pair]
            rows += (fields["id"], fields["epoch"], len(flat), *flat)
        call = scripts.dlq_import(clock="", actor=actor, retention_ms=scripts.RETENTION_MS, rows=rows)
        for fields, reply in zip(part, await queue.run(call), strict=True):
            if reply == b"OK":
                imported += 1
            else:
                skipped[fields["id"].decode()] = reply.decode().lower()
    return Imported(imported, skipped)
