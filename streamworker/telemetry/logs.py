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

from streamworker.core.text import visible
from streamworker.telemetry import transitions

#: What a readable line begins with.
READABLE = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
#: User and password in a URL, and what is called a password, token or secret anywhere.
_IN_URL = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*://[^\s:/@]*):[^\s/]*@")
_NAMED = re.compile(
    r"(?i)\b((?:password|passwd|secret|access_?token|api_?key|authorization)[\"']?\s*[=:]\s*[\"']?)(?!\*\*\*)[^\s\"'&,;)}]+"
)
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
    return _NAMED.sub(r"\1***", text)


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
            "message": redact(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:
                facts[name] = redact(value) if isinstance(value, str) else value
        if record.exc_info:
            facts["error"] = redact(self.formatException(record.exc_info))
        if record.stack_info:
            facts["stack"] = record.stack_info
        try:
            return orjson.dumps(facts, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # half a surrogate pair, or a number beyond 64 bits
            return json.dumps(facts, default=repr)


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
