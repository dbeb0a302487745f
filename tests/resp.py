"""Where one request or reply ends in a stream of RESP bytes; just enough for the proxy to count them."""

from __future__ import annotations

#: Types whose first line is all there is: simple string, error, integer, null, double, boolean, big number.
_LINES = frozenset(b"+-:_,#(")
#: Types with a length and that many bytes: bulk string, bulk error, verbatim string.
_BULKS = frozenset(b"$!=")
#: Types with a count of further values, and how many values each counts for.
_AGGREGATES = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2}


def frame_end(data: bytes | bytearray, start: int = 0) -> int | None:
    """Return where the value that begins at `start` ends, or None if it is not complete yet.

    Requests are values too; an inline command ends with its line.
    """
    missing = 1
    at = start
    while missing:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None
        kind = data[at]
        next_at = line_end + 2
        if kind in _BULKS:
            length = int(data[at + 1 : line_end])
            if length >= 0:
                next_at += length + 2
            if next_at > len(data):
                return None
        elif kind in _AGGREGATES:
            missing += max(int(data[at + 1 : line_end]), 0) * _AGGREGATES[kind]
        elif kind not in _LINES and at != start:
            raise ValueError(f"no RESP value begins with {bytes(data[at : at + 20])!r}")
        missing -= 1
        at = next_at
    return at


class Frames:
    """Cuts a stream that arrives in pieces into whole requests or replies."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next piece; return the values that it completes."""
        self._pending += chunk
        frames = []
        at = 0
        while at < len(self._pending) and (end := frame_end(self._pending, at)) is not None:
            frames.append(bytes(self._pending[at:end]))
            at = end
        del self._pending[:at]
        return frames
