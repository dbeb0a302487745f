"""When a cron runs: ticks of a cron expression in a time zone, and which of them are due. Pure.

Five fields (minute, hour, day of month, month, day of week) or six with the second first, as cronsim reads
them. A schedule at fixed hours follows the wall clock, as Debian's cron does: a time that the change to
summer time leaves out runs right after the gap, one that comes twice in autumn runs the first time. One
whose minutes or hours begin with `*` follows the time that passes: it runs through both hours in autumn, and
is not asked to make up for the hour that spring leaves out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from streamworker.core.errors import ConfigurationError
from streamworker.core.ids import RANDOM_BYTES, new_job_id

#: A tick that nobody ran runs later, if it is not older than this (ms); of several only the latest.
MISSED_WITHIN_MS = 24 * 3600 * 1000
#: A tick that is no later than this (ms) runs by itself: one worker's death or a pause loses none.
LATE_WITHIN_MS = 10_000
#: The key of a tick stays for so long at least and at most (ms). It must outlive what workers' clocks can
#: differ by, twice, and the time from one tick to the next.
TICK_TTL_MS = (60_000, 24 * 3600 * 1000)
#: cronsim looks ahead for 50 years; what has no tick until then is that far away (ms).
FAR_MS = 50 * 365 * 24 * 3600 * 1000
#: No change of a zone's offset moves the wall clock by more.
_LARGEST_SHIFT = timedelta(hours=3)
_SECOND = timedelta(seconds=1)
#: The fields from the last one on, and how many values each has.
_FIELDS = ("weekday", "month", "day", "hour", "minute", "second")
_SIZES = (7, 12, 31, 24, 60, 60)
_STEP = re.compile(r"/(\d+)")


class Overlap(StrEnum):
    """What happens to a tick while the job of an earlier one is open."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron expression in a time zone. Times are ms since the epoch, by Redis's clock."""

    spec: str
    tz: str
    zone: tzinfo
    #: At fixed hours: it follows the wall clock.
    fixed: bool

    @classmethod
    def parse(cls, spec: str, tz: str = "UTC", *, what: str = "cron") -> Schedule:
        """Raises ConfigurationError for an expression that has no tick, or a zone that is not known."""
        if not isinstance(spec, str):
            raise ConfigurationError(f"{what}: the schedule is a text such as '*/5 * * * *', not {spec!r}")
        try:
            zone: tzinfo = UTC if tz == "UTC" else ZoneInfo(tz)
        except (KeyError, ValueError, OSError, TypeError) as error:
            raise ConfigurationError(
                f"{what}: no time zone {tz!r} on this machine ({error}); use a name such as "
                "'Europe/Berlin', and install the package tzdata where the system has no zones"
            ) from None
        fields = spec.split()
        try:
            next(CronSim(spec, datetime(2000, 1, 1)))  # noqa: DTZ001 - any moment will do
        except CronSimError as error:
            raise ConfigurationError(
                f"{what}: {spec!r} is no cron expression ({error}); write minute, hour, day, month and day "
                "of week, with the second in front if need be: '*/5 * * * *', '0 30 3 * * MON'"
            ) from None
        except StopIteration:
            raise ConfigurationError(f"{what}: {spec!r} has no tick in 50 years") from None
        for name, size, text in zip(_FIELDS, _SIZES, reversed(fields), strict=False):
            for step in _STEP.findall(text):
                if int(step) > size:
                    raise ConfigurationError(
                        f"{what}: {spec!r} has a step of {step} {name}s, of which there are {size}: it would "
                        "run each time that those begin anew, not so rarely"
                    )
        minute, hour = fields[-5], fields[-4]
        return cls(spec, tz, zone, not minute.startswith("*") and not hour.startswith("*"))

    @property
    def text(self) -> str:
        """Zone and expression, as Redis keeps them beside the last tick."""
        return " ".join((self.tz, *self.spec.split()))

    def next_after(self, ms: int) -> int:
        """The first tick after that moment."""
        at = _seconds(ms)
        if self.fixed:
            ticks = (self._first_shown(wall) for wall in self._walls(self._wall(at)))
            found = next((tick for tick in ticks if tick > at), None)
        else:
            found = self._passing(at)
        return ms + FAR_MS if found is None else _ms(found)

    def latest(self, *, after_ms: int, upto_ms: int) -> int | None:
        """The last tick that is after the one moment and not after the other."""
        at = _seconds(upto_ms)
        if self.fixed:
            # In autumn a time that was shown before may stand ahead on the wall.
            start = self._wall(at) + (_LARGEST_SHIFT if self._changes_around(at) else _SECOND)
            ticks = (self._first_shown(wall) for wall in self._walls(start, back=True))
            found = next((tick for tick in ticks if tick <= at), None)
        else:
            found = self._passed(at)
        return _ms(found) if found is not None and _ms(found) > after_ms else None

    def moment(self, ms: int) -> datetime:
        """The time in the schedule's zone."""
        return datetime.fromtimestamp(ms / 1000, UTC).astimezone(self.zone)

    def _walls(self, start: datetime, *, back: bool = False) -> Iterator[datetime]:
        """What the expression names after this time on the wall, or before it."""
        # cronsim's own ways with zones miss ticks where clocks change by half an hour, so it gets none.
        return CronSim(self.spec, start, reverse=back)

    def _offset(self, at: datetime) -> timedelta:
        return at.astimezone(self.zone).utcoffset() or timedelta()

    def _wall(self, at: datetime) -> datetime:
        return at.replace(tzinfo=None) + self._offset(at)

    def _passing(self, at: datetime) -> datetime | None:
        """The first tick after a moment, wherever clocks on the wall are set to meanwhile."""
        while True:
            offset = self._offset(at)
            wall = next(self._walls(at.replace(tzinfo=None) + offset), None)
            if wall is None:
                return None
            tick = wall.replace(tzinfo=UTC) - offset
            if self._offset(tick) == offset:
                return tick
            at = self._change(at, tick, from_offset=offset) - _SECOND
            if self._named(at + _SECOND):
                return at + _SECOND
            at += _SECOND

    def _passed(self, at: datetime) -> datetime | None:
        """The last tick not after a moment."""
        at += _SECOND
        while True:
            offset = self._offset(at - _SECOND)
            wall = next(self._walls(at.replace(tzinfo=None) + offset, back=True), None)
            if wall is None:
                return None
            tick = wall.replace(tzinfo=UTC) - offset
            if self._offset(tick) == offset:
                return tick
            at = self._change(tick, at - _SECOND, from_offset=self._offset(tick))

    def _named(self, at: datetime) -> bool:
        wall = self._wall(at)
        return next(self._walls(wall - _SECOND), None) == wall

    def _change(self, early: datetime, late: datetime, *, from_offset: timedelta) -> datetime:
        """The first second after `early`, and not after `late`, with another offset."""
        low, high = 1, int((late - early).total_seconds())
        while low < high:
            middle = (low + high) // 2
            if self._offset(early + timedelta(seconds=middle)) != from_offset:
                high = middle
            else:
                low = middle + 1
        return early + timedelta(seconds=low)

    def _changes_around(self, at: datetime) -> bool:
        return self._offset(at - _LARGEST_SHIFT) != self._offset(at + _LARGEST_SHIFT)

    def _first_shown(self, wall: datetime) -> datetime:
        """The moment at which clocks on the wall show this time first, or right after they skip it."""
        moment = wall.replace(tzinfo=self.zone).astimezone(UTC)
        if self._wall(moment) == wall:
            return moment
        early = moment - _LARGEST_SHIFT
        return self._change(early, moment, from_offset=self._offset(early))


def _seconds(ms: int) -> datetime:
    """The full second that a moment is in, in UTC."""
    return datetime.fromtimestamp(ms // 1000, UTC)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp()) * 1000


@dataclass(frozen=True, slots=True)
class Cron:
    """A task that runs by itself."""

    name: str
    schedule: Schedule
    overlap: Overlap

    def missed(self, *, last_ms: int, now_ms: int) -> int | None:
        """The tick that is to be made up for when a worker starts: the latest since the last, of one day."""
        return self.schedule.latest(after_ms=max(last_ms, now_ms - MISSED_WITHIN_MS), upto_ms=now_ms)

    def begins_anew(self, said: str, *, last_ms: int, now_ms: int) -> bool:
        """Whether this is another schedule than the one that held until now, and that one missed nothing.

        `said`: the `text` of that. What this one names of the time before it was declared is then no missed
        tick: a cron that ran at 3 and is moved to 9 at noon has run today.
        """
        if said in ("", self.schedule.text):
            return False
        tz, _, spec = said.partition(" ")
        try:
            before = replace(self, schedule=Schedule.parse(spec, tz))
        except ConfigurationError:  # of a zone that this machine does not know
            return True
        return before.missed(last_ms=last_ms, now_ms=now_ms) is None

    def lost(self, *, last_ms: int, now_ms: int) -> int | None:
        """The latest tick since the last that is too old to be made up for."""
        return self.schedule.latest(after_ms=last_ms, upto_ms=now_ms - MISSED_WITHIN_MS)

    def following(self, tick_ms: int, *, now_ms: int) -> int:
        """The tick after this one that is to be run next.

        After a long pause, such as an outage, only the latest of those that passed meanwhile.
        """
        following = self.schedule.next_after(tick_ms)
        if following >= now_ms - LATE_WITHIN_MS:
            return following
        after_ms = max(tick_ms, now_ms - MISSED_WITHIN_MS)
        missed = self.schedule.latest(after_ms=after_ms, upto_ms=now_ms)
        return missed if missed is not None else self.schedule.next_after(now_ms)

    def ttl_ms(self, tick_ms: int) -> int:
        """How long the key of this tick stays."""
        shortest, longest = TICK_TTL_MS
        return min(longest, max(shortest, 2 * (self.schedule.next_after(tick_ms) - tick_ms)))

    def job_id(self, tick_ms: int, *, namespace: str, shard: int = 0) -> str:
        """The id of the tick's job, the same for everybody of its namespace who asks for it.

        Others may have a cron of that name and tick, and be mirrored into the same database.
        """
        digest = hashlib.sha256(f"{namespace}:{self.name}:{tick_ms}".encode()).digest()
        return new_job_id(now_ms=tick_ms, shard=shard, random=digest[:RANDOM_BYTES])
