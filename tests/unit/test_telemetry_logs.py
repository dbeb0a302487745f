"""How lines read: each field where it belongs, each line JSON, no secret and no payload in any."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from streamworker.core.errors import DependencyTimeout
from streamworker.core.job import Candidate, Claim, Envelope
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import TRANSITIONS, ErrorClass, Reason, Status
from streamworker.flow.dependency import blamed
from streamworker.telemetry import strays, transitions
from streamworker.telemetry.logs import JsonFormatter, LinesHandler, TextFormatter, redact
from streamworker.telemetry.transitions import Transitions

#: What each line of a move has, whatever happened.
FIELDS = {
    *("job_id", "idempotency_key", "task", "lane", "tenant", "attempt", "previous_status", "next_status"),
    *("error_class", "error_code", "dependency_name", "lock_owner", "fence", "cache_keys", "correlation_id"),
    *("duration", "at", "level", "event", "worker", "reason"),
}
SECRET = "the card is 4111 1111"


@dataclass
class Told:
    """A job as a worker has it."""

    claim: Claim
    outcome: Outcome | None = None
    task_name: str = "pack"
    envelope: Envelope | None = None
    started: float | None = 10.0
    ended: float = 10.25
    marked: bool = False
    dependency: str | None = None
    stale: set[str] | None = None
    who: str = ""


def claim(*, attempt: int = 1, retried: bool = False, gates: str = "") -> Claim:
    return Claim(
        "j1",
        77,
        attempt,
        attempt,
        0,
        0,
        "normal",
        "a",
        "1-0",
        40,
        None,
        None,
        SECRET.encode(),
        gates,
        False,
        retried,
    )


class Page:
    """What a handler wrote."""

    def __init__(self) -> None:
        self.stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")

    def text(self) -> str:
        self.stream.flush()
        raw = self.stream.buffer.getvalue()
        return raw.decode()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().split("\n") if line]


@pytest.fixture
def page() -> Iterator[Page]:
    """Everything that is logged, as JSON."""
    found = Page()
    handler = LinesHandler(found.stream)
    handler.setFormatter(JsonFormatter())
    root, level = logging.getLogger(), transitions.log.level
    root.addHandler(handler)
    transitions.log.setLevel(logging.INFO)
    yield found
    root.removeHandler(handler)
    transitions.log.setLevel(level)


@pytest.fixture
def told() -> Transitions:
    return Transitions("w1", clock=lambda: datetime(2026, 12, 1, 7, 0, 0, 123000, tzinfo=UTC))


RETRY = Retry(30_000, ErrorClass.TRANSIENT, "http_503", SECRET)
FAIL = Fail(ErrorClass.PERSISTENT, "bad_total", SECRET)


def test_a_short_job_goes_through_three_lines(page: Page, told: Transitions) -> None:
    envelope = Envelope("pack", {"card": SECRET}, key="order:7", tenant="acme", correlation_id="c-1")
    job = Told(claim(), Success(SECRET.encode()), envelope=envelope)

    told.exchanged([], [], [job], {"normal": 1})
    told.exchanged([job], [b"OK"], [], {})

    lines = page.lines()
    assert [(line["previous_status"], line["next_status"], line["reason"]) for line in lines] == [
        ("queued", "claimed", "claimed"),
        ("claimed", "processing", "started"),
        ("processing", "succeeded", "returned"),
    ]
    assert all(line.keys() == FIELDS for line in lines)
    for line in lines:
        assert line["at"] == "2026-12-01T07:00:00.123000Z"
        assert (line["level"], line["event"], line["worker"]) == ("info", "transition", "w1")
        assert (line["job_id"], line["fence"], line["attempt"]) == ("j1", 77, 1)
        assert (line["task"], line["lane"], line["tenant"]) == ("pack", "normal", "acme")
        assert (line["idempotency_key"], line["correlation_id"]) == ("order:7", "c-1")
        assert (line["error_class"], line["error_code"], line["lock_owner"]) == (None, None, None)
    assert [line["duration"] for line in lines] == [None, None, 0.25]


def test_a_failure_says_what_and_whose(page: Page, told: Transitions) -> None:
    job = Told(claim(attempt=2, retried=True, gates="0 entity:order:7"), RETRY, dependency="carrier")

    told.exchanged([], [], [job], {})
    told.exchanged([job], [b"OK"], [], {})

    first, _, last = page.lines()
    assert (first["previous_status"], first["lock_owner"]) == ("retry_scheduled", "j1:77")
    assert (last["previous_status"], last["next_status"]) == ("processing", "retry_scheduled")
    assert (last["error_class"], last["error_code"], last["retry_in"]) == ("transient", "http_503", 30)
    assert (last["dependency_name"], last["attempt"]) == ("carrier", 2)


def test_a_job_that_never_ran_goes_from_claimed(page: Page, told: Transitions) -> None:
    told.exchanged([Told(claim(), FAIL, started=None)], [b"OK"], [], {})

    (line,) = page.lines()
    assert (line["previous_status"], line["next_status"], line["duration"]) == (
        "claimed",
        "failed_terminal",
        None,
    )
    assert (line["error_class"], line["error_code"]) == ("persistent", "bad_total")


def test_a_marked_start_is_told_once(page: Page, told: Transitions) -> None:
    job = Told(claim(), Release(Reason.SHUTDOWN), marked=True)

    told.marked([job])
    told.exchanged([job], [b"OK"], [], {})

    assert [(line["previous_status"], line["next_status"]) for line in page.lines()] == [
        ("claimed", "processing"),
        ("processing", "queued"),
    ]


def test_what_was_not_recorded_is_no_move(page: Page, told: Transitions) -> None:
    told.exchanged([Told(claim(), Success()), Told(claim(), Success())], [b"STALE", b"GONE"], [], {})

    assert page.lines() == []


def test_dropped_cache_keys_are_told(page: Page, told: Transitions) -> None:
    told.exchanged([Told(claim(), Success(), stale={"b", "a"})], [b"OK"], [], {})

    assert page.lines()[-1]["cache_keys"] == ["a", "b"]


def test_a_recovery_is_told_as_a_move(page: Page, told: Transitions) -> None:
    candidate = Candidate("j1", 77, 5, 3, Status.PROCESSING, 1, 1, 0, "normal", "pack", "w0")

    told.recovered(candidate, RETRY, b"OK")
    told.recovered(candidate, FAIL, b"OK")

    lines = page.lines()
    assert all(line.keys() >= FIELDS for line in lines)
    assert [line["next_status"] for line in lines] == ["retry_scheduled", "failed_terminal"]
    assert {line["lost_worker"] for line in lines} == {"w0"}


def test_all_moves_are_edges_and_no_payload_is_in_any_line(page: Page, told: Transitions) -> None:
    outcomes: list[Outcome] = [
        Success(SECRET.encode()),
        RETRY,
        FAIL,
        Release(Reason.SNOOZED, 5),
        Success(b"{}", Reason.SKIPPED),
    ]
    for outcome in outcomes:
        for retried in (False, True):
            job = Told(claim(retried=retried), outcome, envelope=Envelope("pack", {"card": SECRET}))
            told.exchanged([], [], [job], {})
            told.exchanged([job], [b"OK"], [], {})

    lines = page.lines()
    edges = {(Status(line["previous_status"]), Status(line["next_status"])) for line in lines}
    assert edges <= TRANSITIONS
    assert len(lines) == 3 * 2 * len(outcomes)
    assert SECRET not in json.dumps(lines)


@pytest.mark.parametrize("name", ['quote"', "new\nline", "back\\slash", "\u2028", "тест", "\x1b[31m"])
def test_hostile_texts_stay_within_their_line(page: Page, told: Transitions, name: str) -> None:
    envelope = Envelope(name, {}, key=name, tenant=name, correlation_id=name)
    job = Told(claim(), Fail(ErrorClass.UNKNOWN, "unknown_task", ""), task_name=name, envelope=envelope)

    told.exchanged([job], [b"OK"], [job], {})

    lines = page.lines()
    assert len(lines) == 3
    for line in lines:
        assert {line[field] for field in ("task", "idempotency_key", "tenant", "correlation_id")} == {name}


#: What acts on terminals or ends a line for some readers, and what orjson writes as it is.
ACTING = "\x1b[2J\x7f\x85\x9b2J\u061c\u200e\u2028\u2029\u202e\u2066\ufeff"


def unseen(text: str) -> set[str]:
    """Characters of a line that nobody sees."""
    return {char for char in text if not char.isprintable()}


def test_no_line_has_characters_that_act_on_terminals_or_end_lines(page: Page, told: Transitions) -> None:
    envelope = Envelope(ACTING, {}, key=f"ключ{ACTING}", tenant=ACTING, correlation_id=ACTING)
    outcome = Fail(ErrorClass.UNKNOWN, ACTING, "")
    job = Told(claim(), outcome, task_name=ACTING, envelope=envelope, dependency=ACTING)
    cached = Told(claim(), Success(), stale={ACTING})
    record = logging.makeLogRecord(
        {"msg": ACTING, "levelname": "INFO", "name": ACTING, "fact": [ACTING], ACTING: "é"}
    )

    told.exchanged([job, cached], [b"OK", b"OK"], [job], {})
    line = JsonFormatter().format(record)

    written = page.text()
    assert unseen(written) == {"\n"}
    assert "ключ" in written, "letters of any language stay letters"
    assert {each["tenant"] for each in page.lines()} >= {ACTING}
    assert unseen(line) == set()
    assert json.loads(line)["fact"] == [ACTING]
    assert json.loads(line)[ACTING] == "é"
    assert unseen(TextFormatter().format(record)) == set()


class _Leaves:
    """Raises where nobody can catch it."""

    def __del__(self) -> None:
        raise ValueError(f"of redis://u:hunter2@h {ACTING}")


@pytest.mark.filterwarnings("default")
def test_what_python_itself_would_write_to_stderr_is_a_line_of_the_log(
    page: Page, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A dying thread wrote its error as it was: many lines, with passwords and what acts on terminals."""
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)

    logging.captureWarnings(False)  # a command that ran in this process may have begun it

    def fail() -> None:
        raise ValueError(f"of redis://u:hunter2@h {ACTING}")

    strays.catch()
    try:
        for run in (fail, sys.exit):
            thread = threading.Thread(target=run, name="of a handler")
            thread.start()
            thread.join()
        _Leaves()
        warnings.warn(ACTING, stacklevel=1)
    finally:
        logging.captureWarnings(False)

    thread_died, ignored, warned = page.lines()
    assert thread_died["message"] == "the thread of a handler raised"
    assert "_Leaves.__del__" in ignored["message"]
    assert warned["logger"] == "py.warnings"
    for line in (thread_died, ignored):
        assert (line["level"], line["logger"]) == ("error", "streamworker")
        assert "ValueError: of redis://u:***@h" in line["error"]
    assert unseen(page.text()) == {"\n"}
    assert capfd.readouterr().err == ""


def test_hooks_that_the_app_has_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(*_: Any) -> None: ...

    monkeypatch.setattr(threading, "excepthook", own)
    monkeypatch.setattr(sys, "unraisablehook", own)

    strays.catch()
    logging.captureWarnings(False)

    assert (threading.excepthook, sys.unraisablehook) == (own, own)


def test_nobody_asked_is_the_rule() -> None:
    level, root = transitions.log.level, logging.getLogger().level
    try:
        transitions.log.setLevel(logging.NOTSET)
        logging.getLogger().setLevel(logging.INFO)
        assert not transitions.wanted(), "three lines for each job are nothing that a root level asks for"
        transitions.log.setLevel(logging.INFO)
        assert transitions.wanted()
    finally:
        transitions.log.setLevel(level)
        logging.getLogger().setLevel(root)


def test_other_records_are_objects_with_their_facts(page: Page) -> None:
    logger = logging.getLogger("shop")
    facts = {"job_id": "j1", "when": datetime(2026, 1, 1, tzinfo=UTC), "half": "\ud800"}
    try:
        raise ValueError("redis://user:hunter2@host/0")
    except ValueError:
        logger.exception("%s went wrong", "it", extra=facts)

    (line,) = page.lines()
    assert (line["level"], line["logger"], line["message"]) == ("error", "shop", "it went wrong")
    assert line["job_id"] == "j1"
    assert "ValueError" in line["error"]
    assert "hunter2" not in json.dumps(line)


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_record_that_json_cannot_hold_is_a_line_all_the_same() -> None:
    """Else `logging` writes its own traceback to stderr, of many lines, and what was said is lost."""
    circle: list[Any] = []
    circle.append(circle)
    odd = [{("a", "b"): 1}, circle, Unshowable(), [Unshowable()], 10**5000, {Unshowable(): 1}]
    records = [{"msg": "said %s", "args": ("so",), "odd": value} for value in odd]
    records += [{"msg": "%d jobs", "args": ("seven",)}, {"msg": Unshowable()}]

    lines = [json.loads(JsonFormatter().format(logging.makeLogRecord(each))) for each in records]

    *said, misfit, unsaid = [line["message"] for line in lines]
    assert said == ["said so"] * len(odd)
    assert lines[0]["odd"] == "{('a', 'b'): 1}"
    assert misfit == "'%d jobs' % ('seven',) (TypeError)"
    assert "Unshowable" in unsaid


@pytest.mark.parametrize(
    "text",
    [
        "no connection to redis://user:hunter2@host:6379/0",
        "postgresql://shop:hunter2@db/shop refused",
        "rediss://:hunter2@host",
        "FATAL: password=hunter2 is wrong",
        "{'password': 'hunter2', 'user': 'shop'}",
        '"api_key": "hunter2"',
        "Authorization: hunter2",
        "Authorization: Bearer hunter2",
        "{'authorization': 'Bearer hunter2', 'accept': '*/*'}",
        "db_password=hunter2",
        "PGPASSWORD=hunter2",
        "X-Api-Key: hunter2",
        "client_secret=hunter2&secret_key=hunter2",
        "refresh_token: hunter2",
        "host=db password='a hunter2' user=shop",
        r'{"password":"a\"hunter2","user":"shop"}',
        r'"{\"password\": \"hunter2\"}"',
    ],
)
def test_secrets_are_redacted(text: str) -> None:
    assert "hunter2" not in redact(text)
    record = logging.makeLogRecord({"msg": text, "levelname": "INFO", "name": "x"})
    assert "hunter2" not in TextFormatter().format(record)
    assert "hunter2" not in JsonFormatter().format(record)


@pytest.mark.parametrize(
    "extra",
    [
        {"password": "hunter2"},
        {"db_password": 17, "note": "password=hunter2"},
        {"headers": {"Authorization": "Bearer hunter2"}},
        {"calls": [{"url": "redis://:hunter2@host"}, ({"api_key": "hunter2"},)]},
    ],
)
def test_what_is_called_a_secret_in_extras_is_redacted_however_deep(extra: dict[str, Any]) -> None:
    record = logging.makeLogRecord({"msg": "x", "levelname": "INFO", "name": "x", **extra})

    line = JsonFormatter().format(record)

    assert "hunter2" not in line
    assert "17" not in json.loads(line).get("db_password", "")


def test_what_stands_beside_a_secret_stays() -> None:
    assert redact("{'password': 'a b', 'user': 'shop'}") == "{'password': '***', 'user': 'shop'}"
    assert redact("Authorization: Bearer abc, next") == "Authorization: Bearer ***, next"
    for text in ("password: '***', user: 'shop'", "Authorization: Bearer ***", '{"password": "***"}'):
        assert redact(text) == text, "what was redacted already"


@pytest.mark.parametrize(
    "text",
    [
        "redis://host:6379/0 is up",
        "the token is 17",
        "job a:b@c of task pack",
        "password reset of 7",
        "secrets: none",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_readable_lines_show_control_characters() -> None:
    record = logging.makeLogRecord({"msg": "red \x1b[31m", "levelname": "INFO", "name": "x"})

    assert "\\x1b[31m" in TextFormatter().format(record)


def test_the_dependency_that_failed_is_known_from_the_error() -> None:
    assert blamed(DependencyTimeout("carrier", 1.0, phase="total")) == "carrier"
    assert blamed(ValueError("else")) is None
