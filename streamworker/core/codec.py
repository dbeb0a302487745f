"""JSON, exactly: what is decoded equals what was encoded, or it is refused with the path of the bad value.

orjson turns NaN into null and writes dates, UUIDs, enums and dataclasses as if they were text; a handler
would then get something else than the caller passed. So each payload is looked through first, by exact type,
at about a microsecond for a small one; only what does not pass is searched again, slowly, for the path.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import math
import sys
from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import orjson

from streamworker.core.errors import PayloadTooLarge, SerializationError
from streamworker.core.text import truncate_text as truncate_text

#: Largest payload taken by default, in bytes of JSON (R46).
PAYLOAD_LIMIT_BYTES = 262_144
#: Deepest nesting of lists and dicts.
MAX_DEPTH = 100
#: Integers are signed 64-bit, which Postgres and other languages can hold as well.
MIN_INT = -(2**63)
MAX_INT = 2**63 - 1
#: Characters of a fingerprint: 96 bits. It detects a conflict and is never an identity.
FINGERPRINT_CHARS = 16

#: What is more than so many times too large is refused unwritten: lists that hold lists twice, forty deep,
#: are few in memory and without end as JSON. What is less is written, for its size to be told.
FAR = 4

#: Items from which on a container is looked at by its set of types first.
_BULK = 16
_SAFE = frozenset({str, bool, type(None)})


def encode_args(args: dict[str, object], *, limit: int = PAYLOAD_LIMIT_BYTES) -> bytes:
    """Return a handler's arguments as JSON.

    Tuples become lists; subclasses of dict, list, str and int become the plain type. Raises
    SerializationError with the path of the first bad value (`args.items[3].when`), PayloadTooLarge above
    `limit` bytes.
    """
    if not isinstance(args, dict):
        raise SerializationError("args", f"must be a dict of arguments, not {_a(args)}")
    return _encode(args, "args", limit)


def encode_items(items: Sequence[object], path: str, *, limit: int) -> list[bytes]:
    """Each item as JSON with sorted keys, so that equal items have equal bytes. Raises as `encode_args`."""
    return [_dump(item, f"{path}[{place}]", orjson.OPT_SORT_KEYS, limit) for place, item in enumerate(items)]


def encode_result(value: object, *, limit: int = PAYLOAD_LIMIT_BYTES) -> bytes:
    """Return a handler's result as JSON, by the rules of `encode_args`; paths begin with `result`."""
    return _encode(value, "result", limit)


def decode(data: bytes) -> Any:
    """Return the value of JSON bytes. Raises SerializationError when they are none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise SerializationError("payload", f"is not valid JSON: {exc}") from None


def fingerprint(args: Mapping[str, object]) -> str:
    """Return 16 characters that tell whether two calls have the same arguments.

    The first 96 bits of SHA-256 over canonical JSON (sorted keys), URL-safe base64. Arguments are taken by
    name as they were passed, defaults not applied; 1 and 1.0 differ, a tuple and a list do not. Raises as
    `encode_args`.
    """
    plain = args if type(args) is dict else dict(args)
    data = _dump(plain, "args", orjson.OPT_SORT_KEYS, sys.maxsize)  # they were encoded before
    return urlsafe_b64encode(hashlib.sha256(data).digest()[: FINGERPRINT_CHARS * 3 // 4]).decode()


def _encode(value: object, root: str, limit: int) -> bytes:
    data = _dump(value, root, 0, limit)
    if len(data) > limit:
        raise PayloadTooLarge(len(data), limit, root)
    return data


def _dump(value: object, root: str, option: int, limit: int) -> bytes:
    if _sound(value, 0, PAYLOAD_LIMIT_BYTES) < 0:
        _check_weight(value, root, limit)
        if _sound(value, 0, sys.maxsize) < 0:
            _search(value, root, ())
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError as exc:  # what types cannot show: a lone surrogate
        _search(value, root, ())
        raise SerializationError(root, str(exc)) from None


def _sound(value: object, depth: int, room: int) -> int:
    """What is left of `room` bytes if the values certainly survive JSON; below 0: look closer.

    An item counts as one byte, and a text by its characters: it takes more. Keys are not looked at: orjson
    itself refuses all but plain str.
    """
    kind: type[Any] = type(value)
    if kind is dict:
        items: Collection[Any] = cast("dict[object, Any]", value).values()
    elif kind is list or kind is tuple:
        items = cast("list[Any]", value)
    else:
        items = (value,)
    if depth >= MAX_DEPTH:
        return -1
    room -= len(items)
    if len(items) > _BULK:
        # Two passes at the speed of C instead of one in Python, for long lists of one kind.
        kinds: set[type[Any]] = set(map(type, items))
        if kinds == {str}:
            return room - sum(map(len, items))
        if kinds == {int}:
            return room if min(items) >= MIN_INT and max(items) <= MAX_INT else -1
        if kinds == {float}:
            return room if all(map(math.isfinite, items)) else -1
        if kinds <= _SAFE:
            return room - sum(len(item) for item in items if type(item) is str)
    for item in items:
        kind = type(item)
        if kind is str:
            room -= len(item)
        elif item is None or kind is bool:
            continue
        elif kind is int:
            if not MIN_INT <= item <= MAX_INT:
                return -1
        elif kind is float:
            if item - item != 0.0:  # NaN and the infinities
                return -1
        elif not (kind is dict or kind is list or kind is tuple):
            return -1
        else:
            room = _sound(item, depth + 1, room)
            if room < 0:
                return -1
    return room


def _check_weight(value: object, path: str, limit: int) -> None:
    """Raise PayloadTooLarge, with the argument that is most of it, for what is far too large."""
    known: dict[int, int] = {}
    size = _weigh(value, 0, known)
    if size <= FAR * limit:
        return
    if isinstance(value, dict) and value:
        key = max(value, key=lambda each: _weigh(value[each], 1, known))
        path = _step(path, key) if isinstance(key, str) else path
    raise PayloadTooLarge(size, limit, path, at_least=True)


def _weigh(value: object, depth: int, known: dict[int, int]) -> int:
    """Bytes of JSON that it takes at least, by one look at each container, however often it is there."""
    if isinstance(value, str):
        return len(value) + 2
    if not isinstance(value, dict | list | tuple) or depth >= MAX_DEPTH:
        return 1
    if id(value) not in known:
        known[id(value)] = 1  # of one that contains itself
        items: Collection[object] = value
        size = len(value) + 1  # brackets, and commas between
        if isinstance(value, dict):
            items = value.values()
            size += sum(len(key) + 3 for key in value if isinstance(key, str))
        known[id(value)] = max(2, size) + sum(_weigh(item, depth + 1, known) for item in items)
    return known[id(value)]


def _search(value: object, path: str, outer: tuple[int, ...]) -> None:
    """Raise SerializationError for the first value that JSON cannot hold; return if there is none."""
    problem = _scalar_problem(value)
    if problem:
        raise SerializationError(path, problem)
    if not isinstance(value, dict | list | tuple):
        return
    if id(value) in outer:
        raise SerializationError(path, "contains itself")
    if len(outer) >= MAX_DEPTH:
        raise SerializationError(path, f"is nested deeper than {MAX_DEPTH} levels")
    outer = (*outer, id(value))
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise SerializationError(
                    path, f"has the key {_shown(key)}, {_a(key)}: keys must be plain str"
                )
            if not _is_utf8(key):
                raise SerializationError(path, f"has the key {_shown(key)} with a lone surrogate")
            _search(item, _step(path, key), outer)
    else:
        for index, item in enumerate(value):
            _search(item, f"{path}[{index}]", outer)


def _scalar_problem(value: object) -> str:
    """What is wrong with a value that is refused whatever it contains, or nothing."""
    match value:
        case enum.Enum():
            return f"is {_a(value)}, a member of an enum: pass .value"
        case None | bool():
            return ""
        case str():
            return "" if _is_utf8(value) else "has a lone surrogate: it is not valid UTF-8"
        case int():
            fits = MIN_INT <= value <= MAX_INT
            return "" if fits else "is an integer beyond 64 bits (signed): pass it as str"
        case float():
            if not math.isfinite(value):
                return f"is {value}, which JSON has no form for: pass None or a str"
            return "" if type(value) is float else f"is {_a(value)}: pass float(...)"
        case tuple() if type(value) is not tuple:
            return f"is {_a(value)}, a tuple with names that JSON would drop: pass a dict or a list"
        case dict() | list() | tuple():
            return ""
        case _:
            return _foreign_problem(value)


def _foreign_problem(value: object) -> str:
    import decimal  # here, since a producer's import shall be quick, and few come so far
    import uuid

    match value:
        case datetime.datetime() if value.tzinfo is None:
            return "is a naive datetime (no time zone): make it aware, then pass .isoformat()"
        case datetime.datetime() | datetime.date() | datetime.time():
            return f"is {_a(value)}, JSON has no dates: pass .isoformat()"
        case datetime.timedelta():
            return "is a timedelta: pass .total_seconds()"
        case bytes() | bytearray() | memoryview():
            return f"is {_a(value)}: pass text, or base64 of it"
        case set() | frozenset():
            return f"is {_a(value)}, which has no order: pass sorted(...)"
        case decimal.Decimal() | uuid.UUID():
            return f"is {_a(value)}: pass str(...)"
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return f"is {_a(value)}, a dataclass: pass dataclasses.asdict(...)"
        case _ if hasattr(type(value), "model_dump"):
            return f'is {_a(value)}, a model: pass .model_dump(mode="json")'
        case _:
            return f"is {_a(value)}: JSON has dict, list, str, int, float, bool and None"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _step(path: str, key: str) -> str:
    if key.isidentifier() and key.isascii():
        return f"{path}.{key}"
    return f"{path}[{_shown(key)}]"


def _shown(key: object) -> str:
    text = ascii(key)
    return text if len(text) <= 80 else text[:77] + "..."


def _a(value: object) -> str:
    """The type's name with its article, as a message needs it."""
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"
