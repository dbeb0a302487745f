"""How a process writes its log: readable lines, or one JSON object for each line. No secret in either."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

import orjson

from streamworker.core.text import inert_json, visible
from streamworker.telemetry import strays, transitions

#: What a readable line begins with.
READABLE = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
#: User and password in a URL.
_IN_URL = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*://[^\s:/@]*):[^\s/]*@")
#: How names of secrets end, whatever stands before: `db_password`, `PGPASSWORD`, `X-Api-Key`.
_NAMES = r"(?:password|passwd|secret(?:[_-]?key)?|(?:access|refresh)[_-]?token|api[_-]?key|authorization)"
_WORDS = ("passw", "secret", "token", "api", "authorization")
_IS_SECRET = re.compile(rf"(?i){_NAMES}\Z")
#: Such a name and its value: in quotes as far as they go, after the word for how somebody authorises himself.
_SCHEME = r"(?:(?:bearer|basic|digest|token)\s+)?"
_NAMED = re.compile(
    rf"(?i)({_NAMES}(?:\\*[\"'])?\s*[=:]\s*)(?:(\\*['\"])(?!{_SCHEME}\*\*\*)({_SCHEME})(?:(?!\2)(?:\\.|[^\\\n]))+"
    rf"|(?!{_SCHEME}\*\*\*)({_SCHEME})[^\s\"'&,;)}}]+)"
)
#: How deep what was given as `extra=` is looked into.
_DEPTH = 8
#: Facts of a record that are its own fields in JSON, besides those of `extra=`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", transitions.READY}


class LogFormat(StrEnum):
    """How lines look."""

    TEXT = "text"  # for people; of jobs only what went wrong
    JSON = "json"  # for programs; each move of each job as well


def redact(text: str) -> str:
    """The text without passwords, as far as they can be told."""
    if "://" in text:
        text = _IN_URL.sub(r"\1:***@", text)
    lowered = text.lower()  # most texts have none of them, and the pattern is dear
    return _NAMED.sub(_hide, text) if any(word in lowered for word in _WORDS) else text


def _hide(found: re.Match[str]) -> str:
    name, quote, quoted_scheme, scheme = found.groups()
    return f"{name}{quote or ''}{quoted_scheme or scheme or ''}***"


def _plain(name: object, value: object, depth: int = _DEPTH) -> Any:
    """What was given as `extra=`, without what is called a secret there."""
    if isinstance(name, str) and value is not None and _IS_SECRET.search(name):
        return "***"
    if isinstance(value, str):
        return redact(value)
    if depth and isinstance(value, dict):
        return {key: _plain(key, each, depth - 1) for key, each in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_plain(None, each, depth - 1) for each in value]
    return value


def _shown(value: object) -> str:
    try:
        return redact(repr(value))
    except Exception:  # it has a `__repr__` that fails, or more digits than Python writes
        return f"<{type(value).__name__}>"


def _message(record: logging.LogRecord) -> str:
    """What it says; where its arguments do not fit, both."""
    try:
        return redact(record.getMessage())
    except Exception as error:
        return f"{_shown(record.msg)} % {_shown(record.args)} ({type(error).__name__})"


def _line(facts: Mapping[str, Any]) -> str:
    """As JSON, whatever `extra=` has: a line that cannot be written is lost, and a traceback in its place."""
    try:
        return orjson.dumps(facts, default=_shown, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # half a surrogate pair, or a number beyond 64 bits
        pass
    try:
        return json.dumps(facts, default=_shown)
    except Exception:  # keys that are tuples, circles
        plain = {name: fact if isinstance(fact, str) else _shown(fact) for name, fact in facts.items()}
        return json.dumps(plain)


class TextFormatter(logging.Formatter):
    """Readable lines; control characters in messages are made visible, since errors quote payloads."""

    def __init__(self) -> None:
        super().__init__(READABLE)

    def format(self, record: logging.LogRecord) -> str:
        """One line, and those of a traceback."""
        return visible(redact(super().format(record)), lines=True)


class JsonFormatter(logging.Formatter):
    """One object a line: `at`, `level`, `logger`, `message`, what was given as `extra=`, and `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; lines that are JSON already stay as they are."""
        if transitions.READY in vars(record):
            return str(record.msg)
        facts: dict[str, Any] = {
            "at": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:
                facts[name] = _plain(name, value)
        if record.exc_info:
            facts["error"] = redact(self.formatException(record.exc_info))
        if record.stack_info:
            facts["stack"] = redact(record.stack_info)
        return inert_json(_line(facts))


class LinesHandler(logging.StreamHandler[TextIO]):
    """Writes many lines at once without encoding them twice."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, and flush."""
        buffer = getattr(self.stream, "buffer", None)
        if buffer is None or transitions.READY not in vars(record):
            super().emit(record)
            return
        try:
            self.flush()
            buffer.write(f"{record.msg}\n".encode())
            buffer.flush()
        except Exception:
            self.handleError(record)


def configure(form: LogFormat, level: int, *, stream: TextIO | None = None) -> None:
    """Let this process log to stderr from this level on. With JSON each move of a job is a line at INFO."""
    handler = LinesHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler])
    strays.catch()
    if form is LogFormat.JSON:
        transitions.log.setLevel(max(level, logging.INFO))


def described() -> Mapping[str, Any]:
    """How this process logs, for a child that is to do the same; see `adopt`."""
    form = LogFormat.TEXT
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonFormatter):
            form = LogFormat.JSON
    return {"level": logging.getLogger().getEffectiveLevel(), "format": str(form)}


def adopt(said: Mapping[str, Any]) -> None:
    """Log as the parent does, unless somebody has set this process up already."""
    if not logging.getLogger().handlers:
        configure(LogFormat(said["format"]), said["level"])
