"""A job queue for Python services that must stay predictable while things fail.

The public names. `Worker` is imported when first asked for: a producer never loads the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamworker.app import App
from streamworker.client import Client, Job, JobView, Options, Request
from streamworker.core.errors import (
    Cancel,
    ConfigurationError,
    ConnectionLost,
    DurationError,
    EnqueueRejected,
    IdempotencyConflict,
    InvalidArgument,
    JobFailed,
    JobNotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    PersistentError,
    ResultTimeout,
    RetryAfter,
    SerializationError,
    ServerUnsuitable,
    StreamworkerError,
    TransientError,
    UnknownTask,
)
from streamworker.core.lanes import Lane
from streamworker.core.outcome import Skip, Snooze
from streamworker.core.retry import Retry
from streamworker.core.states import Disposition, ErrorClass, Status
from streamworker.task import BadArguments, Call, Context, Task

if TYPE_CHECKING:
    from streamworker.worker.worker import Worker as Worker

__version__ = "0.1.0.dev0"

__all__ = [
    "App",
    "BadArguments",
    "Call",
    "Cancel",
    "Client",
    "ConfigurationError",
    "ConnectionLost",
    "Context",
    "Disposition",
    "DurationError",
    "EnqueueRejected",
    "ErrorClass",
    "IdempotencyConflict",
    "InvalidArgument",
    "Job",
    "JobFailed",
    "JobNotFound",
    "JobView",
    "Lane",
    "Options",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PersistentError",
    "Request",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "SerializationError",
    "ServerUnsuitable",
    "Skip",
    "Snooze",
    "Status",
    "StreamworkerError",
    "Task",
    "TransientError",
    "UnknownTask",
    "Worker",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "Worker":
        from streamworker.worker.worker import Worker

        return Worker
    raise AttributeError(f"module 'streamworker' has no attribute {name!r}")
