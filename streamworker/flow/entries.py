"""What an entry of the cache is: `<version> <checksum>`, a line end, and the value as JSON."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import orjson

from streamworker.core.errors import InvalidArgument


def encoded(value: Any) -> bytes:
    """As JSON: a value looks the same whether it was cached or not. Raises InvalidArgument."""
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument("cached value", value, f"is nothing that JSON holds: {error}") from None


def packed(key: str, version: int, body: bytes) -> bytes:
    """The entry that keeps this value for this key."""
    return b"%d %08x\n%b" % (version, _checksum(key, body), body)


def unpacked(key: str, data: bytes) -> bytes | None:
    """The value as JSON; None for what was not kept for this key."""
    head, _, body = data.partition(b"\n")
    try:
        _, checksum = head.split(b" ")
        return body if int(checksum, 16) == _checksum(key, body) else None
    except ValueError:
        return None


def _checksum(key: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(key.encode()))


def check(key: object, version: object) -> None:
    """Raises InvalidArgument for what is no key, or no version of one."""
    if not isinstance(key, str) or not key:
        raise InvalidArgument("cache key", key, 'is a text that names one value, such as f"price:{sku}"')
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("cache key", key, "has a lone surrogate, which UTF-8 cannot hold") from None
    if type(version) is not int or not 0 <= version < 2**53:
        raise InvalidArgument("version", version, "is a whole number from 0 on")


def check_keys(keys: Iterable[object]) -> None:
    """Raises InvalidArgument."""
    for key in keys:
        check(key, 0)
