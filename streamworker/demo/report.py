"""What the demo shows: progress on stderr while it runs, then a table and the account on stdout."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from streamworker.demo.fleet import Deaths
from streamworker.demo.ledger import Account, Ledger

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

#: Seconds between two looks of progress: a line where there is no terminal, else the picture.
LINE_EVERY, LIVE_EVERY = 2.0, 0.25
#: News kept in sight on a terminal.
NEWS = 6
#: Width of the table where there is no terminal.
_WIDE = 120


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a run is."""

    elapsed: float  # seconds
    accepted: int
    ended: int


class Progress:
    """Live on a terminal, else a line every other second; always on stderr."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._news: list[str] = []
        self._live: Live | None = None
        self._next_look = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(console=_console(sys.stderr), refresh_per_second=8, transient=True)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def tell(self, elapsed: float, line: str) -> None:
        """Something happened."""
        line = f"{elapsed:5.1f} s  {line}"
        self._news = [*self._news, line][-NEWS:]
        if self._live is None:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def update(self, now: Snapshot, ledger: Ledger) -> None:
        """Show where the run is."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + (LINE_EVERY if self._live is None else LIVE_EVERY)
        phase = "enqueuing" if now.elapsed < self._seconds else "waiting for the last jobs"
        line = (
            f"{now.elapsed:5.1f} s  {phase}: {now.accepted} accepted, {now.ended} over, "
            f"{now.accepted - now.ended} open"
        )
        if self._live is None:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
            return
        from rich.console import Group
        from rich.text import Text

        news = Text("\n".join(self._news), style="dim")
        self._live.update(Group(Text(line), Text(), lane_table(ledger), Text(), news))


def lane_table(ledger: Ledger) -> Table:
    """A row for each lane and task."""
    from rich import box
    from rich.table import Table

    # Narrow enough for 80 columns. Waits are from enqueue to the first claim.
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.add_column("lane", no_wrap=True)
    table.add_column("task", no_wrap=True)
    for name in ("accepted", "succeeded", "dead", "retries", "recovered", "p50 ms", "p95 ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for (lane, task), row in sorted(
        ledger.rows.items(), key=lambda item: (item[0][0] != "priority", item[0])
    ):
        counts = (row.accepted, row.succeeded, row.failed, row.retries, row.recovered)
        table.add_row(lane, task, *map(str, (*counts, row.wait_ms(0.5), row.wait_ms(0.95))))
    return table


def as_json(account: Account, deaths: Deaths) -> str:
    """The stable shape of `streamworker demo --json`."""
    return json.dumps(
        {
            "accepted": account.accepted,
            "succeeded": account.succeeded,
            "dead_lettered": account.dead_lettered,
            "pending": account.pending,
            "double_outcomes": account.double_outcomes,
            "jobs_per_second": account.jobs_per_second,
            "kills": deaths.kills,
            "balanced": account.balanced,
        },
        indent=2,
    )


def print_account(account: Account, deaths: Deaths, ledger: Ledger) -> None:
    """The table per lane and task, then the account, on stdout."""
    out = _console(sys.stdout)
    out.print(lane_table(ledger))
    out.print("p50 and p95 of the wait from enqueue to the first start\n", style="dim")
    for line in account_lines(account, deaths):
        out.print(line, style=None if account.balanced else "red", soft_wrap=True)


def account_lines(account: Account, deaths: Deaths) -> list[str]:
    """The account in words."""
    over = account.succeeded + account.dead_lettered
    sign = "=" if account.accepted == over else "≠"
    throughput = (
        f"{account.jobs_per_second:g} jobs a second: {over} in {account.seconds:.1f} s, with all kills and "
        f"retries; {account.best_second} in the best second"
    )
    kills = (
        f"{deaths.kills} workers by SIGKILL: {deaths.ordered} by the demo, {deaths.by_job} by a job that "
        "kills its own process"
    )
    sums = (
        f"{account.accepted} accepted {sign} {account.succeeded} succeeded + {account.dead_lettered} "
        f"dead-lettered; {account.pending} pending; {account.double_outcomes} outcomes recorded twice"
    )
    lines = [f"throughput   {throughput}", f"kills        {kills}", f"account      {sums}"]
    if account.durable:
        lines.append(f"durable      {account.durable}")
    lines += [f"             {each}" for each in account.disagreements]
    if deaths.exits:
        lines.append(f"             workers that ended by themselves, with exit codes {deaths.exits}")
    lines.append(f"             {'it balances' if account.balanced else 'IT DOES NOT BALANCE'}")
    return lines


def _console(stream: object) -> Console:
    from rich.console import Console

    terminal = bool(getattr(stream, "isatty", lambda: False)())
    return Console(
        file=stream,  # type: ignore[arg-type]
        markup=False,
        highlight=False,
        width=None if terminal else _WIDE,
    )
