"""What a mirror makes of a log that others write to, and read."""

from __future__ import annotations

from typing import Any

from streamworker.postgres.gauges import Gauges
from streamworker.postgres.log import Log
from streamworker.postgres.offsets import Offset
from streamworker.postgres.pipe import Pipe
from streamworker.store.keys import Keys

OFFSET = Offset("shop", 0, "marker", True, 1, 1, "1-0", None)


class Answers:
    """A Redis that gives these answers, by command."""

    def __init__(self, **answers: list[Any]) -> None:
        self._answers = answers

    async def command(self, name: str, *_: object) -> Any:
        return self._answers[name].pop(0)


def log_of(**answers: list[Any]) -> Log:
    caller: Any = Answers(**answers)
    return Log(caller, Keys("shop"))


async def test_what_another_mirror_has_taken_meanwhile_is_not_waited_for() -> None:
    """As `mirror reconcile` beside a mirror that runs."""
    source = log_of(XRANGE=[[(b"2-0", [b"t", b"2"])], []], XREAD=[None])
    connection: Any = None

    await Pipe(source, connection, OFFSET, "m", Gauges()).drain("2-0")


async def test_an_entry_of_no_time_has_no_age() -> None:
    source = log_of(
        XLEN=[1], HGET=[b"64"], XRANGE=[[(b"2-0", [b"n", b"1", b"t", b"soon"])]], TIME=[[b"5", b"0"]]
    )

    assert (await source.lag()).seconds == 0
