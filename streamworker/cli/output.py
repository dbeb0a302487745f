"""What goes to the terminal: tables for people, JSON for programs, errors in one line.

Payloads, keys and error texts are data. Before they reach a terminal their control characters are made
visible, so that no job can colour, clear or rewrite the screen of who looks at it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from streamworker.cli.hints import copyable
from streamworker.core.text import counted as counted
from streamworker.core.text import visible

if TYPE_CHECKING:
    from rich.console import Console

#: Width for tables: rows are as wide as they need, so that an id can be copied from any terminal.
_WIDE = 10_000
#: Longest text in a cell of a table.
CELL = 80


def clean(text: object, *, lines: bool = False) -> str:
    """The text with control characters made visible, such as `\\x1b`; `lines` leaves line breaks alone."""
    return visible(str(text), lines=lines)


def short(text: object, limit: int = CELL) -> str:
    """The first line of a text, cut to fit a cell, safe to print."""
    first = str(text).strip().partition("\n")[0]
    return clean(first if len(first) <= limit else first[: limit - 1] + "…")


def emit_json(value: Any) -> None:
    """Print one JSON document on stdout. Pure ASCII, so no control character survives unescaped."""
    print(json.dumps(value, indent=2, ensure_ascii=True).replace("\x7f", "\\u007f"))


def console() -> Console:
    """A console on stdout that colours only on a terminal and honours NO_COLOR."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True, width=_WIDE)


#: Styles of words that stand for a state.
_STYLES = {
    "succeeded": "green",
    "failed_terminal": "red",
    "retry_scheduled": "yellow",
    "claimed": "cyan",
    "processing": "cyan",
    "ok": "green",
    "warning": "yellow",
    "problem": "red",
}


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on stdout; None is shown as `-`. Columns that begin with `#` are numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        numeric = column.startswith("#")
        table.add_column(column.removeprefix("#"), justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        cells = ["-" if value is None or value == "" else clean(value) for value in row]
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in cells))
    out = console()
    with out.capture() as capture:
        out.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values below each other; lines of a long text stay lines."""
    from rich.text import Text

    rows = [
        (name, "-" if value is None or value == "" else clean(value, lines=True)) for name, value in facts
    ]
    width = max((len(name) for name, _ in rows), default=0)
    out = console()
    for name, value in rows:
        first, *rest = value.split("\n")
        out.print(Text(f"{name:<{width}}  ", style="dim").append(first, style=_STYLES.get(first, "not dim")))
        for line in rest:
            out.print(Text(" " * (width + 2) + line))


def say(text: str) -> None:
    """One line for the person at the terminal, on stderr: stdout belongs to the answer.

    A command in it, in backticks or at its end, gets the options by which this line was asked.
    """
    print(copyable(clean(text)), file=sys.stderr)
