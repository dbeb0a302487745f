"""A worker's name: host, pid and a boot nonce. Never reused, so that a new pod cannot hide a death (R7)."""

from __future__ import annotations

import os
import re
import secrets
import socket

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")


def new_worker_id() -> str:
    host = _UNFIT.sub("-", socket.gethostname())[:32] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
