"""What ties a worker process to the supervisor that started it: a socket that closes when either dies."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

#: `fd:path`: the child's end of the socket pair, and where it answers the supervisor's questions.
FLEET_VARIABLE = "STREAMWORKER_FLEET"
#: Number of the process among those of its supervisor, from 1.
SLOT_VARIABLE = "STREAMWORKER_SLOT"
#: What the child says once it claims jobs.
UP = b"up\n"


@dataclass(slots=True, eq=False)
class Leash:
    """The child's end."""

    path: Path | None  # where the supervisor asks; None: it does not
    _socket: socket.socket

    @classmethod
    def inherited(cls) -> Self | None:
        """The leash that this process was started with, taken once: it is not for processes that we start."""
        value = os.environ.pop(FLEET_VARIABLE, "")
        descriptor, _, path = value.partition(":")
        if not descriptor:
            return None
        end = socket.socket(fileno=int(descriptor))
        end.set_inheritable(False)
        return cls(Path(path) if path else None, end)

    def hold(self, stop: Callable[[], None], *, patience: float) -> None:
        """When the supervisor is gone call `stop`, from a thread, and exit after `patience` seconds."""

        def watch() -> None:
            with contextlib.suppress(OSError):
                while self._socket.recv(64):
                    pass
            stop()
            time.sleep(patience)
            os._exit(1)  # a loop that is blocked hears no `stop`, and nobody is left to kill us

        threading.Thread(target=watch, name="streamworker-leash", daemon=True).start()

    def say_up(self) -> None:
        """Tell the supervisor that this worker claims jobs."""
        with contextlib.suppress(OSError):
            self._socket.sendall(UP)
