"""Many events, one job: what a task declares of it, and the words that tell the scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamworker.core import codec, durations
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError, InvalidArgument
from streamworker.core.lane import check_whole
from streamworker.core.template import KeyTemplate, key_id

LATEST, COLLECT = "latest", "collect"
ALWAYS, PRESSURE = "always", "pressure"
#: Items or events of one window at most: a script handles them in one step (R32).
MAX_MERGED = 1_000
#: Longest window: what it holds is not worked on meanwhile.
MAX_WINDOW_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Coalesce:
    """Jobs of a task that come within a `window` become one, as `@app.task(coalesce=Coalesce("latest"))`.

    The first event waits for the window's end; `"latest"` runs the arguments of the last event, `"collect"`
    the items of all of them, each item once. `by` is a template over the arguments: events of different names
    are merged apart; without it all jobs of the task are merged. Events of different tenants or lanes never
    meet. `items` is the list argument that is collected; by default the only one that `by` does not name.
    Events that are given further arguments, optional ones, are merged with those that are given the same. A
    window with `limit` items or events ends early. `when="pressure"`: only while the lane is under
    pressure.

    Raises ConfigurationError or DurationError.
    """

    mode: str
    window: Duration = field(default=1.0, kw_only=True)
    by: str | None = field(default=None, kw_only=True)
    items: str | None = field(default=None, kw_only=True)
    limit: int = field(default=MAX_MERGED, kw_only=True)
    when: str = field(default=ALWAYS, kw_only=True)

    def __post_init__(self) -> None:
        if self.mode not in (LATEST, COLLECT):
            raise ConfigurationError(f'coalesce is "latest" or "collect", not {self.mode!r}')
        if self.when not in (ALWAYS, PRESSURE):
            raise ConfigurationError(f'coalesce: when= is "always" or "pressure", not {self.when!r}')
        if self.items is not None and self.mode != COLLECT:
            raise ConfigurationError('coalesce: items= belongs to "collect"')
        check_whole("coalesce: limit=", self.limit, 2, MAX_MERGED)
        if not 1 <= self.window_ms <= MAX_WINDOW_MS:
            raise ConfigurationError(
                f"coalesce: a window is above 0 and at most an hour, not {self.window!r}"
            )

    @property
    def window_ms(self) -> int:
        return durations.to_ms(self.window, what="coalesce: window")

    @classmethod
    def of(cls, said: Coalesce | str | None) -> Coalesce | None:
        """What `coalesce=` of a task says: `"latest"` alone is `Coalesce("latest")`."""
        return cls(said) if isinstance(said, str) else said

    def raw(self) -> dict[str, Any]:
        """As it is published."""
        return {
            "mode": self.mode,
            "window": self.window_ms / 1000,
            "by": self.by,
            "items": self.items,
            "limit": self.limit,
            "when": self.when,
        }


class Coalescer:
    """What `Coalesce` comes to for the jobs of one task."""

    def __init__(
        self, task: str, parameters: Sequence[str], required: Sequence[str], declared: Coalesce
    ) -> None:
        """Raises ConfigurationError for what cannot be merged without losing something."""
        what = f"task {task}: coalesce"
        self.declared = declared
        self._task = task
        self._by = (
            None
            if declared.by is None
            else KeyTemplate.parse(
                declared.by, parameters, what=f"{what} by=", without_field="names no field"
            )
        )
        #: The arguments that say what may be merged.
        self.fields: tuple[str, ...] = () if self._by is None else self._by.fields
        #: The argument that is collected; '' with "latest".
        self.items = ""
        if declared.mode == COLLECT:
            self.items = declared.items or self._only_other(what, parameters)
            if self.items not in parameters or self.items in self.fields:
                raise ConfigurationError(f"{what}: items={self.items!r} is no argument that it could collect")
            lost = sorted({*required} - {self.items, *self.fields})
            if lost:
                raise ConfigurationError(
                    f"{what}: {', '.join(lost)} of all events but the first would be lost; name it in by="
                )

    def _only_other(self, what: str, parameters: Sequence[str]) -> str:
        others = [name for name in parameters if name not in self.fields]
        if len(others) != 1:
            raise ConfigurationError(
                f"{what}: which argument is collected? Say items=, one of: {', '.join(others) or 'none'}"
            )
        return others[0]

    def _merges(self, name: str) -> bool:
        return name == self.items or name in self.fields

    def pack(self, args: Mapping[str, Any], *, limit: int) -> tuple[bytes, list[int]]:
        """The arguments as JSON with the items last, and the bytes of each item.

        Raises as `codec.encode_args`, and InvalidArgument for items that are no list, or an empty one.
        """
        if not self.items:
            return codec.encode_args(dict(args), limit=limit), []
        given = args.get(self.items)
        if not isinstance(given, (list, tuple)) or not given:
            raise InvalidArgument(self.items, given, "is collected: it takes a list with at least one item")
        if len(given) > MAX_MERGED:
            raise InvalidArgument(self.items, len(given), f"items; {MAX_MERGED} are collected at most")
        others = {name: value for name, value in args.items() if name != self.items}
        items = codec.encode_items(given, f"args.{self.items}", limit=limit)
        head = codec.encode_args(others, limit=limit)[:-1] + (b"," if others else b"")
        encoded = b'%b"%b":[%b]}' % (head, self.items.encode(), b",".join(items))
        return encoded, [len(item) for item in items]

    def word(
        self, args: Mapping[str, Any], lengths: Sequence[int], *, lane: str, tenant: str | None, limit: int
    ) -> str:
        """The window of one event, as the script `coalesce` takes it. Raises InvalidArgument."""
        apart = f"{lane}/{tenant or ''}"
        if self.items and (others := {name: args[name] for name in args if not self._merges(name)}):
            apart += f"\n{codec.fingerprint(others)}"  # of all events but the first they would be lost
        name = key_id(self._task, apart, "" if self._by is None else self._by.render(args))
        declared = self.declared
        return " ".join(
            (
                declared.mode,
                name.replace(" ", "%20"),
                str(declared.window_ms),
                str(declared.limit),
                declared.when,
                str(limit),
                ",".join(map(str, lengths)) or "-",
            )
        )
