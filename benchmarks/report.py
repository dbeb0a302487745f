"""Records of runs, and tables of them that read well in a terminal and in Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
Row = list[str]
#: What `figures` differ in within one scenario.
PARTS = ("style", "slots", "queued")
REFERENCE = "streamworker"


@dataclass(frozen=True, slots=True)
class Record:
    """One run, complete in itself."""

    contender: str
    scenario: str
    server: str
    aof: str
    at: str  # ISO 8601, UTC
    load: float  # of the machine, before
    versions: dict[str, str]
    keeps: str
    figures: Figures

    @property
    def setting(self) -> str:
        return f"{self.server}, AOF {self.aof}"

    @property
    def what(self) -> tuple[object, ...]:
        """Equal for repeats of the same run."""
        parts = (self.figures.get(part) for part in PARTS)
        return (self.scenario, self.setting, self.contender, *parts)


class Results:
    """A results file: what was in it stays."""

    def __init__(self, path: Path, machine: dict[str, str | int]) -> None:
        self._path = path
        self._document: dict[str, Any] = {"machine": machine, "records": []}
        if path.exists():
            self._document["records"] = json.loads(path.read_text())["records"]

    def add(self, record: Record) -> None:
        self._document["records"].append(asdict(record))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._document, indent=1) + "\n")


def read(path: Path) -> list[Record]:
    return [Record(**record) for record in json.loads(path.read_text())["records"]]


def medians(records: Iterable[Record]) -> list[tuple[Record, int]]:
    """For repeats of a run the one in the middle, and how many there were; in the order of the first."""
    repeats: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        repeats.setdefault(record.what, []).append(record)
    return [(_middle(group), len(group)) for group in repeats.values()]


def _middle(group: Sequence[Record]) -> Record:
    ordered = sorted(group, key=lambda record: record.figures.get("p50_ms") or record.figures["jobs_per_s"])
    return ordered[(len(ordered) - 1) // 2]


def tables(records: Iterable[Record]) -> str:
    """One table for each scenario."""
    rows = medians(records)
    parts = [
        _enqueue(_of(rows, "enqueue")),
        _throughput(_of(rows, "throughput")),
        _latency(_of(rows, "latency")),
        _depth(_of(rows, "depth")),
        _durable(_of(rows, "durable")),
        *map(_profile, _of(rows, "profile")),
    ]
    return "\n\n".join(part for part in parts if part)


def _of(rows: list[tuple[Record, int]], scenario: str) -> list[tuple[Record, int]]:
    return [row for row in rows if row[0].scenario == scenario]


def _enqueue(rows: list[tuple[Record, int]]) -> str:
    return _table(
        "enqueue",
        ["contender", "server", "style", "jobs/s", "client µs", "Redis µs", "commands/job", "runs"],
        [
            [
                *_who(record),
                record.figures["style"],
                *_numbers(record.figures, "jobs_per_s", "client_us", "redis_us", "commands"),
                str(runs),
            ]
            for record, runs in rows
        ],
    )


_DRAIN = ["jobs/s", "worker µs", "Redis µs", "commands/job", "reads/job", "others' CPU"]


def _drained(figures: Figures) -> Row:
    cells = _numbers(figures, "jobs_per_s", "worker_us", "redis_us", "commands", "reads")
    busy = figures["others_cpu"]
    return [*cells, "" if busy is None else f"{busy:.0%}"]


def _throughput(rows: list[tuple[Record, int]]) -> str:
    reference = {
        (record.setting, record.figures["slots"]): record.figures["jobs_per_s"]
        for record, _ in rows
        if record.contender == REFERENCE
    }

    def times(record: Record) -> str:
        own = reference.get((record.setting, record.figures["slots"]))
        return "" if own is None else f"{own / record.figures['jobs_per_s']:.2f}"

    return _table(
        "throughput",
        ["contender", "server", "slots", *_DRAIN, "bytes kept/job", f"{REFERENCE} is ×", "runs"],
        [
            [
                *_who(record),
                str(record.figures["slots"]),
                *_drained(record.figures),
                *_numbers(record.figures, "bytes_kept"),
                times(record),
                str(runs),
            ]
            for record, runs in rows
        ],
    )


def _latency(rows: list[tuple[Record, int]]) -> str:
    percentiles = ("p50_ms", "p95_ms", "p99_ms", "max_ms")
    return _table(
        "latency, ms",
        ["contender", "server", "p50", "p95", "p99", "max", "jobs", "jobs/s", "runs"],
        [
            [
                *_who(record),
                *(f"{record.figures[name]:.2f}" for name in percentiles),
                *_numbers(record.figures, "jobs", "paced_per_s"),
                str(runs),
            ]
            for record, runs in rows
        ],
    )


def _depth(rows: list[tuple[Record, int]]) -> str:
    return _table(
        "depth",
        ["contender", "server", "queued", "bytes/queued job", "slots", *_DRAIN, "runs"],
        [
            [
                *_who(record),
                *_numbers(record.figures, "queued", "bytes_queued"),
                str(record.figures["slots"]),
                *_drained(record.figures),
                str(runs),
            ]
            for record, runs in rows
        ],
    )


def _durable(rows: list[tuple[Record, int]]) -> str:
    reference = {
        record.figures["style"]: record.figures["jobs_per_s"]
        for record, _ in rows
        if record.contender == f"{REFERENCE}@mirror"
    }

    def times(record: Record) -> str:
        own = reference.get(record.figures["style"])
        return "" if own is None else f"{own / record.figures['jobs_per_s']:.2f}"

    parts = ("client_us", "worker_us", "redis_us", "mirror_us", "postgres_us")
    return _table(
        "durable: every job in Postgres as well",
        ["contender", "style", "slots", "jobs/s", "client µs", "worker µs", "Redis µs", "mirror µs",
         "Postgres µs", "lag, s", f"{REFERENCE} is ×", "runs"],
        [
            [
                record.contender,
                record.figures["style"],
                str(record.figures["slots"]),
                *_numbers(record.figures, "jobs_per_s", *parts, "lag_s"),
                times(record),
                str(runs),
            ]
            for record, runs in rows
        ],
    )  # fmt: skip


def _profile(row: tuple[Record, int]) -> str:
    record, _ = row
    return _table(
        f"profile of {record.contender}, {record.figures['slots']} slots",
        ["function", "calls/job", "own µs/job"],
        [[of["function"], f"{of['calls']:.2f}", f"{of['own_us']:.2f}"] for of in record.figures["functions"]],
    )


def _who(record: Record) -> Row:
    return [record.contender, record.setting]


def _numbers(figures: Figures, *names: str) -> Row:
    """Three significant digits, or none after the point for what is counted in hundreds."""

    def text(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    return [text(figures.get(name)) for name in names]


def _table(title: str, header: Row, rows: list[Row]) -> str:
    if not rows:
        return ""
    texts = [header, *rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(header))]
    left = [not any(row[column][:1].isdigit() for row in rows) for column in range(len(header))]

    def line(row: Row) -> str:
        cells: list[str] = []
        for cell, width, is_left in zip(row, widths, left, strict=True):
            align: Callable[[int], str] = cell.ljust if is_left else cell.rjust
            cells.append(align(width))
        return f"| {' | '.join(cells)} |"

    rule = " | ".join("-" * width if is_left else "-" * (width - 1) + ":"
                      for width, is_left in zip(widths, left, strict=True))  # fmt: skip
    return "\n".join([f"{title}:", "", line(header), f"| {rule} |", *map(line, rows)])
