"""What Redis answers when it refuses: the errors, and by which kind each is counted."""

from __future__ import annotations

from streamworker.core.errors import StreamworkerError


class ReplyError(StreamworkerError):
    """Redis refused a command; a script's error names the Lua file and line it came from."""


class NoScript(ReplyError):
    """The server does not know the script's digest: load it and send again (R29)."""


#: Error replies that are counted by their own name; all others count as `reply`.
REPLY_KINDS = frozenset(
    {"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOGROUP", "OOM", "NOPERM"}
)


def count(errors: dict[str, int], error: Exception) -> None:
    """Count an error by its kind, for metrics."""
    if isinstance(error, NoScript):
        return  # the server was restarted: the text is sent, and nobody needs to know
    if isinstance(error, ReplyError):
        if str(error).startswith("ERR no such key"):
            return  # what XINFO says of a stream that nobody has written to: an answer
        word = str(error).partition(" ")[0]
        kind = word.lower() if word in REPLY_KINDS else "reply"
    elif isinstance(error, TimeoutError) or "no answer" in str(error):
        kind = "timeout"
    else:
        kind = "connection"
    errors[kind] = errors.get(kind, 0) + 1


def reply_error(message: str) -> Exception:
    """The error for an error reply, as hiredis hands it over."""
    if message.startswith("NOSCRIPT"):
        return NoScript(message)
    return ReplyError(message)
