"""Where a handler raised: the lines of code that led there, and nothing of what the error says.

An error's text may quote arguments, so it stays in the job's record and its dead letter; a log goes further.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import linecache
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

from streamworker.worker.running import Running

log = logging.getLogger("streamworker.worker")

#: Frames that are shown of one error, the innermost.
FRAMES = 12
#: Errors that are shown: the one that was raised, what caused it, and so on.
CAUSES = 3
#: What lies between the worker and the first line of a handler.
_BETWEEN = tuple(
    f"{Path(file).parent}/" for file in (asyncio.__file__, concurrent.futures.__file__, Path(__file__).parent)
)


def tell(running: Running, error: BaseException) -> None:
    """Log where an error that nobody declared was raised: mostly a bug, and the first thing to know of it."""
    log.warning(
        "job %s of task %s: attempt %d raised %s",
        running.claim.job_id,
        running.task_name,
        running.claim.attempt,
        "\ncaused by ".join(map(_shown, _chain(error))),
        extra={
            "job_id": running.claim.job_id,
            "task": running.task_name,
            "attempt": running.claim.attempt,
        },
    )


def place(error: BaseException) -> str:
    """The handler's line and the one that raised, `  at tasks.py:41 in pack, prices.py:7 in find`; or ''."""
    frames = _frames(error)
    ends = frames[:1] + frames[1:][-1:]
    shown = (f"{code.co_filename}:{line} in {code.co_name}" for code, line in ends)
    return f"  at {', '.join(shown)}" if ends else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    for _ in range(CAUSES):
        if following is None:
            return
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def _frames(error: BaseException) -> list[tuple[CodeType, int]]:
    """The code and line of each call, from the handler to what raised."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = next((at for at, (code, _) in enumerate(frames) if not code.co_filename.startswith(_BETWEEN)), 0)
    return frames[theirs:]


def _shown(error: BaseException) -> str:
    # By hand: `traceback` reads the file's date and parses the line for each frame, ten times the cost.
    lines = [type(error).__name__]
    for code, line in _frames(error)[-FRAMES:]:
        lines.append(f'  File "{code.co_filename}", line {line}, in {code.co_name}')
        if source := linecache.getline(code.co_filename, line).strip():
            lines.append(f"    {source}")
    return "\n".join(lines)
