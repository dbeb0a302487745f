"""The benchmarks' harness: what it counts, what it compares, and that it runs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import catalogue, report
from benchmarks.__main__ import parse
from benchmarks.catalogue import CONTENDERS, Runtime
from benchmarks.environments import HERE, Environment, Unavailable
from benchmarks.inside import tally
from benchmarks.inside.host import Supply
from benchmarks.report import Record
from benchmarks.scenarios import Bench, Setting, concerns
from benchmarks.server import Aof, Kind

Said = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    lines: Said = []
    monkeypatch.setattr(tally, "say", lambda kind, **figures: lines.append((kind, figures)))
    return lines


def record(contender: str, **figures: Any) -> Record:
    filled = {"worker_us": 10.0, "redis_us": 10.0, "commands": 5.0, "reads": 1.0, "others_cpu": 0.0}
    return Record(contender, "throughput", "redis 7.0.15", "off", "now", 0.0, {}, "", filled | figures)


@pytest.mark.parametrize("label", CONTENDERS)
def test_a_contender_has_an_adapter_and_pinned_packages(label: str) -> None:
    contender = CONTENDERS[label]
    suffix = "mjs" if contender.runtime is Runtime.NODE else "py"

    assert (HERE / "inside" / "adapters" / f"{contender.name}.{suffix}").is_file()
    if contender.runtime is not Runtime.HERE:
        lines = (HERE / "requirements" / f"{contender.name}.txt").read_text().split()
        assert all(re.fullmatch(r"[A-Za-z0-9-]+==[0-9][\w.]*", line) for line in lines), lines


def test_a_tally_reports_once_after_the_last_job(said: Said) -> None:
    counting = tally.Tally(expect=3, deadline=60, redis_pid=1)

    for n in (0, 1, 1, 2):
        counting.ran({"n": n})

    [(kind, figures)] = said
    assert (kind, figures["jobs"], figures["complete"], figures["repeats"]) == ("FIGURES", 3, True, 1)


def test_a_tally_reports_what_ran_by_the_deadline(said: Said) -> None:
    counting = tally.Tally(expect=1_000, deadline=-1, redis_pid=1)

    for n in range(tally.LOOK_EVERY):
        counting.ran({"n": n})

    [(_, figures)] = said
    assert (figures["jobs"], figures["complete"]) == (tally.LOOK_EVERY, False)


def test_delays_of_warm_ups_do_not_count(said: Said) -> None:
    delays = tally.Delays(expect=1)

    for n in range(tally.WARM_UPS):
        delays.ran({"n": n})
    delays.ran({"n": 0, "sent": "0"})

    assert [kind for kind, _ in said] == ["WARM", "FIGURES"]
    assert said[-1][1]["jobs"] == 1


def test_percentiles_are_runs_that_happened() -> None:
    found = tally.percentiles([n * 1_000_000 for n in range(100, -1, -1)])

    assert found == {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99, "max_ms": 100}


@pytest.mark.parametrize(("count", "deadline", "numbers"), [(3, 60, [0, 1, 2]), (3, -1, [])])
def test_a_supply_ends_with_its_count_or_its_time(count: int, deadline: float, numbers: list[int]) -> None:
    supply = Supply(count, deadline)

    assert list(supply) == numbers
    assert supply.put == len(numbers)


def test_the_table_shows_the_repeat_in_the_middle() -> None:
    repeats = [record("arq", slots=32, jobs_per_s=speed) for speed in (300.0, 100.0, 200.0)]

    [(shown, runs)] = report.medians([*repeats])

    assert (shown.figures["jobs_per_s"], runs) == (200.0, 3)


def test_a_contender_is_compared_at_the_same_number_of_slots() -> None:
    table = report.tables(
        [
            record("streamworker", slots=1, jobs_per_s=1_000.0),
            record("streamworker", slots=256, jobs_per_s=9_000.0),
            record("arq", slots=256, jobs_per_s=3_000.0),
            record("arq", slots=32, jobs_per_s=3_000.0),
        ]
    )

    times = [line.split("|")[-3].strip() for line in table.splitlines()[4:]]
    assert times == ["1.00", "1.00", "3.00", ""]


def test_results_are_added_to_what_a_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "results.json"

    for contender in ("arq", "saq"):
        report.Results(file, {"processors": 2}).add(record(contender, slots=1, jobs_per_s=1.0))

    assert [found.contender for found in report.read(file)] == ["arq", "saq"]
    assert json.loads(file.read_text())["machine"] == {"processors": 2}


def test_without_node_its_contender_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Unavailable, match="node and npm"):
        Environment.of(CONTENDERS["bullmq_node"], tmp_path)


def test_a_contender_that_needs_a_newer_python_is_unavailable_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    newer = replace(CONTENDERS["oban"], python=(sys.version_info[0], sys.version_info[1] + 1))

    with pytest.raises(Unavailable, match="it needs python3"):
        Environment.of(newer, tmp_path)


def test_only_what_has_a_record_in_postgres_is_measured_by_that() -> None:
    durable = {label for label, each in CONTENDERS.items() if concerns("durable", each)}

    assert durable == {"streamworker@mirror", "procrastinate", "pgqueuer", "pgqueuer@batches", "oban"}
    assert {label for label, each in CONTENDERS.items() if not concerns("throughput", each)} == durable


def test_the_mirror_goes_through_both_styles(tmp_path: Path) -> None:
    effort = catalogue.Effort(share=1, drain_seconds=60, enqueue_seconds=1, paced_jobs=20, depths=(50,))
    setting = Setting(Kind.VALKEY, Aof.OFF, effort, jobs=200, slots=(32,))
    bench = Bench(Environment.of(CONTENDERS["streamworker@mirror"], tmp_path), setting)

    first, second = bench.durable()

    assert (first["style"], second["style"]) == ("queued first", "at once")
    assert [run["jobs"] for run in (first, second)] == [200, 200]
    assert min(run[name] for run in (first, second) for name in ("mirror_us", "postgres_us", "lag_s")) > 0
    assert first["client_us"] is None
    assert second["client_us"] > 0


@pytest.mark.parametrize(
    ("words", "slots"),
    [([], None), (["streamworker"], None), (["rq", "arq", "--slots", "1", "256"], [1, 256])],
)
def test_the_command_line_takes_names_and_options(words: list[str], slots: list[int] | None) -> None:
    options = parse(words)

    assert options.contenders == [word for word in words if word in CONTENDERS]
    assert options.slots == slots
    assert "profile" not in options.only


def test_a_name_that_is_no_contender_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["sidekiq"])

    assert "sidekiq" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("label", "asked", "given"),
    [
        ("streamworker", None, (1, 32, 256)),
        ("streamworker", (8, 300), (8, 300)),
        ("huey", (1, 256), (1,)),
        ("rq", (256,), (1,)),
    ],
)
def test_a_contender_gets_no_more_slots_than_it_can_have(
    label: str, asked: tuple[int, ...] | None, given: tuple[int, ...], tmp_path: Path
) -> None:
    contender = CONTENDERS[label]
    setting = Setting(Kind.VALKEY, Aof.OFF, catalogue.SHORT, slots=asked)

    assert Bench(Environment(contender, tmp_path), setting).slots() == given


@pytest.mark.parametrize(
    ("scenario", "figures"),
    [
        (Bench.throughput, {"slots": 32, "jobs": 200, "complete": True, "repeats": 0}),
        (Bench.depth, {"slots": 32, "jobs": 50, "complete": True, "queued": 50}),
        (Bench.latency, {"slots": 32, "jobs": 20}),
    ],
)
def test_streamworker_goes_through_a_scenario(
    scenario: Callable[[Bench], Any], figures: dict[str, Any], tmp_path: Path
) -> None:
    effort = catalogue.Effort(share=1, drain_seconds=60, enqueue_seconds=1, paced_jobs=20, depths=(50,))
    setting = Setting(Kind.VALKEY, Aof.OFF, effort, jobs=200, slots=(32,))
    bench = Bench(Environment.of(CONTENDERS["streamworker"], tmp_path), setting)

    [run] = scenario(bench)

    assert run | figures == run
