"""What operators set at run time, as Postgres has it, and back into a Redis that lost it (D19).

Each `tune` is an action of an operator, and the last one about a subject holds. What Redis has set is left as
it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamworker.core.text import truncate_text
from streamworker.store import scripts
from streamworker.store.caller import Caller
from streamworker.store.keys import Keys

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger("streamworker.mirror")

#: Verbs of `tune` that set something, with the words of their value; and those that lift it again.
_SETTING = {
    "pause": 1,
    "limit": 1,
    "throttle": 2,
    "drain": 2,
    "open": 2,
    "close": 2,
    "slots": 1,
    "retries": 1,
}
_LIFTING = {"resume": "pause", "reset": "limit", "auto": "open"}
#: Verbs whose value begins with ms for which they hold, where it is not for good.
_TIMED = frozenset({"pause", "open", "close"})
#: What ends the value of the others that hold for a time; after that, what holds for good holds again.
_FOR = ";for="
#: What the reason of a setting that was restored begins with.
_RESTORED = "restored, set by "
MAX_REASON = 200

ACTIONS = """
SELECT (extract(epoch FROM at) * 1000)::bigint AS at_ms, actor, action, subject, detail
FROM streamworker.operator_actions
WHERE namespace = $1 AND shard = $2 AND action = ANY($3::text[]) ORDER BY at, id
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What an operator set, as `tune` takes it."""

    verb: str
    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.verb} {self.name} {self.value or '-'}"

    @property
    def row(self) -> tuple[str, str, str, str]:
        return self.verb, self.name, self.value, self.reason


def read_setting(verb: str, name: str, detail: str, *, actor: str, at_ms: int, now_ms: int) -> Setting | None:
    """What still holds of an action; None for one that lifted something, or whose time is over."""
    count = _SETTING.get(verb)
    words = detail.split(" ")
    if count is None or words[0] == "-":
        return Setting(verb, name, "", _reason(words[1:], actor)) if verb == "pause" else None
    value, rest = words[:count], words[count:]
    if verb in _TIMED and (for_ms := int(value[0])):
        left = at_ms + for_ms - now_ms
        if left <= 0:
            return None
        value[0] = str(left)
    plain, timed, text = value[-1].partition(_FOR)
    if timed:
        left = at_ms + int(text) - now_ms
        if left <= 0:
            return None
        value[-1] = f"{plain}{_FOR}{left}"
    return Setting(verb, name, " ".join(value), _reason(rest, actor))


def _reason(words: list[str], actor: str) -> str:
    said = " ".join(words)
    return said if said.startswith(_RESTORED) else truncate_text(f"{_RESTORED}{actor}: {said}", MAX_REASON)


def _topic(verb: str) -> str:
    """Verbs about the same thing have the same."""
    return "open" if verb == "close" else _LIFTING.get(verb, verb)


def last_words(rows: Iterable[tuple[int, str, str, str, str]], *, now_ms: int) -> list[Setting]:
    """What still holds of actions (time, actor, verb, name, detail), the earliest first. Pure.

    Of what holds for a time, what holds for good comes first: it holds again after that.
    """
    last: dict[tuple[str, str], list[Setting]] = {}
    for at_ms, actor, verb, name, detail in rows:
        try:
            setting = read_setting(verb, name, detail, actor=actor, at_ms=at_ms, now_ms=now_ms)
        except (ValueError, IndexError):  # nobody may enqueue until the others are set again
            log.warning(
                "what %s set is not understood, and is not set again: %s %s %s", actor, verb, name, detail
            )
            continue
        about = last.setdefault((_topic(verb), name), [])
        timed = _FOR in " ".join(detail.split(" ")[: _SETTING.get(verb, 0)])
        about[:] = [each for each in about if timed and _FOR not in each.value]
        if setting is not None:
            about.append(setting)
    return [each for about in last.values() for each in about]


class Operators:
    """One shard."""

    def __init__(self, connection: asyncpg.Connection, caller: Caller, keys: Keys) -> None:
        self._connection = connection
        self._caller = caller
        self._keys = keys

    async def restore(self, *, actor: str, dry_run: bool) -> list[Setting]:
        """Set again what is not set any more, and return it. Safe to be called twice."""
        lost = [each for each in await self._last() if not await self._stands(each)]
        if lost and not dry_run:
            rows = [word for each in lost for word in each.row]
            call = scripts.tune(clock="", actor=actor, retention_ms=scripts.RETENTION_MS, rows=rows)
            await self._caller.run(call)
        return lost

    async def _last(self) -> Iterable[Setting]:
        """What holds by the last word of each subject."""
        seconds, micros = await self._caller.command("TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        verbs = [*_SETTING, *_LIFTING]
        rows = await self._connection.fetch(ACTIONS, self._keys.namespace, self._keys.shard, verbs)
        return last_words((tuple(row) for row in rows), now_ms=now_ms)

    async def _stands(self, setting: Setting) -> bool:
        """Whether something of the kind is set in Redis."""
        command, policies = self._caller.command, self._keys.policies
        match setting.verb:
            case "pause":
                return _has_line(await command("GET", self._keys.pauses), f"{setting.name} ")
            case "limit":
                return bool(await command("HEXISTS", policies, f"limit:{setting.name}"))
            case "throttle":
                return _has_line(await command("HGET", policies, "throttles"), f"throttle {setting.name} ")
            case "drain":
                return bool(await command("HEXISTS", policies, "drain"))
            case "slots" | "retries":
                key = f"{setting.verb} {setting.name}"
                return bool(await command("HEXISTS", self._keys.settings, key))
            case _:
                return _has_line(await command("GET", self._keys.breakers), f"{setting.name} ")


def _has_line(text: bytes | None, beginning: str) -> bool:
    return any(line.startswith(beginning) for line in (text or b"").decode().splitlines())
