"""All that Redis ever wrote to a log, from its append-only file: nobody can take it away there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import redis

from streamworker.embedded import EmbeddedServer
from streamworker.store.events import Transition, decode

#: Keeps the whole file; scripts are written to it as the commands that they ran.
CONFIG = {"auto-aof-rewrite-percentage": "0", "aof-use-rdb-preamble": "no"}


def commands(data: bytes) -> Iterator[list[bytes]]:
    """The commands of an append-only file."""
    at = 0
    while at < len(data):
        if data[at : at + 1] == b"#":  # an annotation
            at = data.index(b"\n", at) + 1
            continue
        end = data.find(b"\r\n", at)
        if data[at : at + 1] != b"*" or end < 0:
            return  # the last one is being written
        count, at = int(data[at + 1 : end]), end + 2
        words = []
        for _ in range(count):
            end = data.find(b"\r\n", at)
            size = int(data[at + 1 : end])
            words.append(data[end + 2 : end + 2 + size])
            at = end + 4 + size
        yield words


def logged(server: EmbeddedServer, key: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Id and fields of every entry that was ever written to this log."""
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CONFIG", "SET", "appendfsync", "always")  # what was written is in the file
        folder = Path(client.config_get("dir")["dir"], "appendonlydir")
    found = []
    for path in sorted(folder.glob("*.incr.aof"), key=lambda each: int(each.name.split(".")[2])):
        for words in commands(path.read_bytes()):
            if words[0].upper() == b"XADD" and words[1] == key.encode():
                fields = words[3:]
                found.append((words[2], dict(zip(fields[::2], fields[1::2], strict=True))))
    return found


def moves(server: EmbeddedServer, key: str) -> list[Transition]:
    """Every move that was ever logged there, in order."""
    return [move for _, fields in logged(server, key) for move in decode(fields)]
