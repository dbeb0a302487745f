"""The slots of lanes: how many each worker reserves and how the rest is shared, as declared and as set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamworker.core.durations import Duration
from streamworker.core.errors import DoesNotFit, InvalidArgument
from streamworker.core.lane import BACKLOG, check_lane_name
from streamworker.core.slots import SlotsOverride
from streamworker.ops import inspect, settings, tune
from streamworker.ops.settings import Setting
from streamworker.store.events import pairs
from streamworker.store.queue import Queue

#: How the fields of `policies` begin that hold what workers declare.
_DECLARED = "declared:slots:"


@dataclass(frozen=True, slots=True)
class LaneSlots:
    """One lane."""

    lane: str
    #: `reserved` and `weight` as workers declare them; None: no worker has such a lane.
    declared: tuple[int, int] | None
    set: Setting | None

    @property
    def override(self) -> SlotsOverride:
        """What an operator has set."""
        return SlotsOverride() if self.set is None else SlotsOverride.parse(self.set.value)

    @property
    def reserved(self) -> int | None:
        """Slots of each worker that serve no other lane, as far as it has as many; None: nobody knows."""
        own = self.override.reserved
        return own if own is not None else self.declared[0] if self.declared else None

    @property
    def weight(self) -> int | None:
        """Its part of those that are shared."""
        own = self.override.weight
        return own if own is not None else self.declared[1] if self.declared else None

    def json(self) -> dict[str, Any]:
        """The stable shape of a row of `slots --json`."""
        return {
            "lane": self.lane,
            "reserved": self.reserved,
            "weight": self.weight,
            "declared": None
            if self.declared is None
            else {"reserved": self.declared[0], "weight": self.declared[1]},
            "set": None if self.set is None else self.set.json(),
        }


async def slots(queue: Queue) -> list[LaneSlots]:
    """The lanes that workers declare or that somebody has set, by name."""
    policies = pairs(await queue.caller.command("HGETALL", queue.keys.policies))
    declared = {
        field.decode().removeprefix(_DECLARED): _figures(value.decode())
        for field, value in policies.items()
        if field.startswith(_DECLARED.encode())
    }
    given = {name: one for (_, name), one in (await settings.by_name(queue, "slots")).items()}
    return [
        LaneSlots(lane, declared.get(lane), given.get(lane))
        for lane in sorted(declared.keys() | given.keys())
    ]


def _figures(text: str) -> tuple[int, int]:
    reserved, weight = text.split(",")
    return int(reserved), int(weight)


async def set_slots(
    queue: Queue,
    lane: str,
    *,
    actor: str,
    reserved: int | None = None,
    weight: int | None = None,
    reason: str = "",
    duration: Duration | None = None,
    clamp: bool = False,
) -> None:
    """Let all workers share their slots otherwise, within a second; what is not said stays.

    A worker with fewer slots than the lanes reserve scales all its reservations down, and one slot at least
    stays shared. That a living worker would have to is refused, unless `clamp`. Raises InvalidArgument.
    """
    check_lane_name(lane)
    if lane == BACKLOG:
        raise InvalidArgument("lane", lane, "is served by no worker; see: streamworker drain")
    now = {one.lane: one for one in await slots(queue)}

    def over(value: str | None) -> str:
        before = SlotsOverride() if value is None else SlotsOverride.parse(value)
        return SlotsOverride(
            before.reserved if reserved is None else reserved, before.weight if weight is None else weight
        ).word

    if reserved is not None and not clamp:
        counts = {name: one.reserved or 0 for name, one in now.items()}
        check_room(await inspect.workers(queue), counts, {**counts, lane: reserved})
    await settings.adjust(queue, "slots", lane, over, actor=actor, reason=reason, duration=duration)


def check_room(workers: list[dict[str, Any]], before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Raise InvalidArgument if a worker would have to scale more reservations down than it does. Pure."""
    for worker in workers:
        wanted, had = (sum(counts.get(lane, 0) for lane in worker["lanes"]) for counts in (after, before))
        room = worker["concurrency"]
        if room is not None and wanted > max(had, room - 1):
            raise DoesNotFit(
                "reserved",
                wanted,
                f"are more in all lanes than worker {worker['id']} can reserve, with {room} slots of which "
                "one is shared; reserve fewer, or say --clamp: such workers scale all reservations down",
            )


async def reset_slots(queue: Queue, lane: str, *, actor: str, reason: str = "") -> bool:
    """Let what the app declares hold again. False: nothing else was set."""
    return await tune.change(queue, actor, "slots", check_lane_name(lane), "", reason)
