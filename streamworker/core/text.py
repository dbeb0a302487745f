"""Makes text safe to store: bounded, valid UTF-8, without NUL."""

from __future__ import annotations

import re

#: The smallest limit that leaves room for the mark which says that text was cut.
MIN_TEXT_BYTES = 64
#: Longest error text kept with a job, in bytes.
ERROR_TEXT_BYTES = 8192

# jsonb takes neither NUL nor lone surrogates (R44), and UTF-8 cannot hold the latter at all.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def truncate_text(text: str, limit_bytes: int = ERROR_TEXT_BYTES) -> str:
    """Return `text` as at most `limit_bytes` bytes of valid UTF-8; a cut text says so at its end.

    NUL and lone surrogates become U+FFFD. Raises ValueError when `limit_bytes` is below 64.
    """
    if limit_bytes < MIN_TEXT_BYTES:
        raise ValueError(f"limit_bytes must be at least {MIN_TEXT_BYTES}, got {limit_bytes}")
    # A character has at least one byte: what lies beyond the limit need not be looked at.
    head = _UNSTORABLE.sub("\ufffd", text[: limit_bytes + 1])
    data = head.encode()
    if len(data) <= limit_bytes and len(head) == len(text):
        return head
    mark = f"… [cut, {len(text)} characters in all]"
    return data[: limit_bytes - len(mark.encode())].decode("utf-8", "ignore") + mark
