"""Commands that an answer names, with the options of the line that asked, so that they work when copied."""

from __future__ import annotations

import os
import re
import shlex

from streamworker.store.handshake import redact

#: What is at the end of a text or in backticks, and takes `--app`.
_COMMAND = re.compile(
    r"streamworker (?:enqueue|jobs|dlq|cron|top|lanes|route|workers|tasks|explain|gates|limits|breakers|pause"
    r"|resume|throttle|drain|slots|retries|settings|undo|purge|runbook|doctor|exporter"
    r"|mirror (?:run|verify|reconcile|off)|outbox)\b[^`]*?(?=`|$)"
)
#: What the line that asked said of the app and its Redis.
_said: list[str] = []


def forget() -> None:
    """Another line begins."""
    _said.clear()


def remember(namespace: str, redis_url: str | None) -> None:
    """Whose jobs the line is about, and on which Redis, unless the environment says so already.

    The address may hold a password, which is not shown again: its place is left to be filled in.
    """
    forget()
    if namespace != os.environ.get("STREAMWORKER_NAMESPACE"):
        _said.extend(("--app", namespace))
    if redis_url and redis_url != os.environ.get("STREAMWORKER_REDIS_URL"):
        _said.extend(("--redis-url", redis_url if redact(redis_url) == redis_url else "URL"))


def copyable(text: str) -> str:
    """The text with these options after each command that takes them."""
    if not _said or "streamworker " not in text:
        return text
    return _COMMAND.sub(_completed, text)


def _completed(found: re.Match[str]) -> str:
    command = found[0]
    if "--help" in command or " --app" in command:
        return command
    return f"{command.rstrip()} {shlex.join(_said)}"
