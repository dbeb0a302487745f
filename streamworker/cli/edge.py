"""The edge between commands and the shell: one line per error, exit codes, and no tracebacks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from streamworker.cli import hints
from streamworker.cli.output import clean, say
from streamworker.core.errors import (
    ConfigurationError,
    ConnectionLost,
    DoesNotFit,
    DurationError,
    InvalidArgument,
    PayloadTooLarge,
    SerializationError,
    StreamworkerError,
    UnusableUrl,
)

#: Set to 1, it shows the traceback of an error.
DEBUG_VARIABLE = "STREAMWORKER_DEBUG"
INTERRUPTED, TERMINATED = 130, 143
#: Whoever read our output has gone (`| head`); typer says 1 as well.
BROKEN_PIPE = 1
#: Digits of an integer that is read, to be refused with its place if it is too large.
MOST_DIGITS = 1_000

# typer brings a copy of click in newer versions, so its errors are found through what typer exports.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
_CLICK_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
#: What the command line, a setting or a declaration says wrongly.
_WRONG = (
    ConfigurationError,
    DurationError,
    InvalidArgument,
    PayloadTooLarge,
    SerializationError,
    UnusableUrl,
)
#: Newer versions check options with pydantic, whose words are for programmers.
_OTHERS_WORDS = ((" Value error,", ""), (" Input should be", " it should be"))


class CommandFailed(Exception):
    """A command's own failure: the message is the whole line, `code` the exit code (2: wrong usage)."""

    def __init__(self, message: str, *, code: int = 1) -> None:
        self.code = code
        super().__init__(message)


class Commands(TyperGroup):
    """The root command. Whatever happens inside becomes an exit code and at most one line on stderr."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command and leave through SystemExit, always."""
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a character gets its escape, not a traceback.
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        _trim()
        hints.forget()
        try:
            returned = super().main(
                args, prog_name or "streamworker", complete_var, False, windows_expand_args, **extra
            )
            code = returned if isinstance(returned, int) else 0
            if sys.stdout is not None and not sys.stdout.closed:  # it may be in a daemon
                sys.stdout.flush()
        except BrokenPipeError:
            _forget_stdout()
            code = BROKEN_PIPE
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except Exception as error:
            code = report(error)
        sys.exit(code)


def _trim() -> None:
    """Settings without the end of a line, as an --env-file or a secret has it, for options that take them."""
    for name, value in list(os.environ.items()):
        if name.startswith("STREAMWORKER_") and value != value.strip():
            os.environ[name] = value.strip()


def read_json(text: str) -> Any:
    """The value of a JSON text that somebody wrote. Raises CommandFailed, or ValueError for what is none.

    A name that an object has twice is refused: all but its last value would be lost without a word.
    """
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_int=_whole, parse_constant=_no_constant)
    except RecursionError:
        raise CommandFailed("JSON is nested too deeply", code=2) from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise CommandFailed(f"JSON has the name {name!r} twice in one object; keep one of them", code=2)
        found[name] = value
    return found


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:  # Python reads none of more than 4300
        raise CommandFailed("JSON has an integer beyond 64 bits; write it as a text", code=2)
    return int(text)


def _no_constant(name: str) -> NoReturn:
    raise CommandFailed(f"JSON has no form for {name}; use null or a text", code=2)


def leave_when_told(code: int = 0) -> None:
    """Until this command listens itself: as process 1 it has no default action for SIGTERM (R47)."""

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(code)

    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, leave)


def _forget_stdout() -> None:
    """What is still buffered would fail again when the interpreter ends, with a message."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def report(error: Exception) -> int:
    """Print an error as one line on stderr and return the exit code."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        return 2
    from streamworker.telemetry.logs import redact

    if os.environ.get(DEBUG_VARIABLE) == "1" and not isinstance(error, _CLICK_ERROR):
        for line in redact("".join(traceback.format_exception(error))).splitlines():
            say(line)
    say(f"error: {redact(message_of(error))}")
    return code_of(error)


def code_of(error: Exception) -> int:
    """The exit code: 2 where nothing but another command line or setting helps, else 1."""
    if isinstance(error, CommandFailed):
        return error.code
    if isinstance(error, DoesNotFit) or isinstance(error.__context__, OSError):
        return 1  # what is there now, or the machine, does not allow it: it may the next time
    return 2 if isinstance(error, (_USAGE_ERROR, *_WRONG)) else 1


def message_of(error: Exception) -> str:
    """What went wrong and what to do, in one line."""
    if isinstance(error, _CLICK_ERROR):
        text = error.format_message()  # type: ignore[attr-defined]
        for theirs, ours in _OTHERS_WORDS:
            text = text.replace(theirs, ours)
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "streamworker"
        return f"{text.rstrip('.')}; see `{path} --help`"
    if isinstance(error, ConnectionLost):
        said = str(error).rstrip(".")
        return f"{said}; start Redis there, or say with STREAMWORKER_REDIS_URL where it is"
    if isinstance(error, ModuleNotFoundError) and error.name == "asyncpg":
        return "asyncpg is not installed: pip install 'streamworker[postgres]'"
    if type(error).__module__.startswith("asyncpg."):
        from streamworker.postgres.connection import unavailable

        error = unavailable(error)
    if getattr(error, "kind", None) in ("connection", "timeout"):  # of Postgres
        said = str(error).rstrip(".")
        return f"{said}; start Postgres there, or say with STREAMWORKER_POSTGRES_DSN where it is"
    if isinstance(error, CommandFailed | StreamworkerError):
        return str(error)
    return f"{type(error).__name__}: {clean(error)}; {DEBUG_VARIABLE}=1 shows where it came from"
