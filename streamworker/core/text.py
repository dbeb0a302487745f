"""Makes text safe to store: bounded, valid UTF-8, without NUL; and safe to show."""

from __future__ import annotations

import re

#: The smallest limit that leaves room for the mark which says that text was cut.
MIN_TEXT_BYTES = 64
#: Longest error text kept with a job, in bytes.
ERROR_TEXT_BYTES = 8192

# jsonb takes neither NUL nor lone surrogates (R44), and UTF-8 cannot hold the latter at all.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

#: DEL and C1 controls, marks that turn the direction of text, separators that some terminals and readers
#: break lines at, and halves of surrogate pairs, which cannot be written at all.
_BEYOND_C0 = "\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
#: And C0 controls: ANSI escapes begin with one.
_UNSAFE = re.compile(f"[\x00-\x1f{_BEYOND_C0}]")
#: Of C0 controls, JSON has none within its texts.
_UNSAFE_JSON = re.compile(f"[{_BEYOND_C0}]")


def counted(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def visible(text: str, *, lines: bool = False) -> str:
    """The text with control characters made visible, such as `\\x1b`; `lines` leaves line breaks alone."""

    def show(found: re.Match[str]) -> str:
        char = found.group()
        return char if lines and char == "\n" else char.encode("unicode_escape").decode()

    return _UNSAFE.sub(show, text)


def inert_json(document: str) -> str:
    """The same JSON, with what `visible` would show as escapes of JSON's own: it acts on no terminal."""
    if document.isascii() and "\x7f" not in document:
        return document
    return _UNSAFE_JSON.sub(lambda found: f"\\u{ord(found.group()):04x}", document)


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
