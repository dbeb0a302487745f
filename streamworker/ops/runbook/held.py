"""What operators have set, and the command that takes each of it back."""

from __future__ import annotations

from collections.abc import Iterable

from streamworker.ops.history import iso
from streamworker.ops.runbook.sight import Held
from streamworker.ops.settings import Setting


def held(settings: Iterable[Setting]) -> tuple[Held, ...]:
    """All that is set, each with the command that ends it."""
    return tuple(
        Held(_said(one), one.by, one.reason, way_back)
        for one in settings
        if (way_back := way_back_of(one.topic, one.name)) is not None
    )


def values(topic: str, settings: Iterable[Setting]) -> dict[str, str]:
    """What is set of one topic, and by whom, by name."""
    return {one.name: f"{one.spoken()}, by {one.by}" for one in settings if one.topic == topic}


def way_back_of(topic: str, name: str) -> tuple[str, ...] | None:
    """The words that take a setting of that topic back; None for one of a newer version."""
    match topic:
        case "pause":
            return ("resume", name)
        case "limit":
            return ("limits", "reset", name)
        case "throttle":
            return ("throttle", name, "--off")
        case "drain":
            return ("drain", "--reset")
        case "slots" | "retries":
            return (topic, name, "--reset")
        case "breaker":
            return ("breakers", "auto", name)
        case _:
            return None


def _said(one: Setting) -> str:
    until = "" if one.until is None else f" until {iso(one.until)}"
    return f"{one.topic} {one.name}: {one.spoken()}{until}"
