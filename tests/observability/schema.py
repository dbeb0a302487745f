"""Grafana's own schema of dashboards, as its foundation SDK has it: what fits it, and what does not.

The SDK reads a dashboard without a look at it. So each value that it read is compared here with the type
that the schema gives it, and what it would write with what was read: what the schema does not know is lost.
"""

from __future__ import annotations

import enum
import json
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard, units

plugins.register_default_plugins()

#: Units that Grafana knows by name; others are shown behind the number as they are.
UNITS = frozenset(
    value
    for hint in typing.get_type_hints(units).values()
    for value in typing.get_args(hint)
    if isinstance(value, str)
)


#: Fields of annotations that belong to their data source: the schema is open there, classes are not.
_OF_SOURCES = re.compile(r"\.annotations\.list\[\d+\]\.(titleFormat|textFormat|rawQuery)$")


def complaints(document: dict[str, Any]) -> list[str]:
    """What does not fit the schema; empty when it is valid."""
    read = dashboard.Dashboard.from_json(document)
    written = json.loads(JSONEncoder().encode(read))
    return [*_mistyped(read, type(read), "dashboard"), *_lost(document, written, "dashboard")]


def _lost(ours: object, theirs: object, where: str) -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            if name not in theirs:
                if value is not None and not _OF_SOURCES.search(f"{where}.{name}"):
                    yield f"{where}.{name}: the schema does not know it"
            else:
                yield from _lost(value, theirs[name], f"{where}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _lost(one, other, f"{where}[{place}]")
    elif ours != theirs:
        yield f"{where}: {ours!r} is read as {theirs!r}"


def _mistyped(value: object, wanted: Any, where: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any or wanted is object:
        yield from _inside(value, where)
    elif origin in (typing.Union, types.UnionType):
        tries = [list(_mistyped(value, each, where)) for each in arguments]
        if all(tries):
            yield max((each for one in tries for each in one), key=lambda said: len(said.split(":")[0]))
    elif origin is typing.Literal:
        if value not in arguments:
            yield f"{where}: {value!r} is none of {arguments}"
    elif origin is list:
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no list"
        else:
            for place, each in enumerate(value):
                yield from _mistyped(each, arguments[0], f"{where}[{place}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no object"
        else:
            for name, each in value.items():
                yield from _mistyped(each, arguments[1], f"{where}.{name}")
    elif isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        if value not in {each.value for each in wanted}:
            yield f"{where}: {value!r} is no {wanted.__name__}"
    elif wanted is float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            yield f"{where}: {value!r} is no number"
    elif wanted is int or wanted is bool or wanted is str:
        if type(value.value if isinstance(value, enum.Enum) else value) is not wanted:
            yield f"{where}: {value!r} is no {wanted.__name__}"
    elif isinstance(value, dict) and hasattr(wanted, "from_json"):  # the SDK left it as it was
        read = wanted.from_json(value)
        yield from _lost(value, json.loads(JSONEncoder().encode(read)), where)
        yield from _inside(read, where)
    elif not isinstance(value, wanted):
        yield f"{where}: {value!r} is no {wanted.__name__}"
    else:
        yield from _inside(value, where)


def _inside(value: object, where: str) -> Iterator[str]:
    """The fields of what the schema has a class for."""
    module = type(value).__module__
    if module.startswith("grafana_foundation_sdk.models"):
        hints = typing.get_type_hints(type(value))
        for name, wanted in hints.items():
            yield from _mistyped(getattr(value, name), wanted, f"{where}.{name}")
