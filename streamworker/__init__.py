"""A job queue for Python services that must stay predictable while things fail.

The public names. Each is imported when first asked for, so that a producer loads neither the worker nor what
only declares tasks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamworker.app import App
    from streamworker.client import Client, Job
    from streamworker.context import Context
    from streamworker.core.breaker import Breaker
    from streamworker.core.coalesce import Coalesce
    from streamworker.core.errors import (
        Cancel,
        ConfigurationError,
        ConnectionLost,
        DependencyTimeout,
        DurationError,
        EnqueueRejected,
        FencedOut,
        IdempotencyConflict,
        InvalidArgument,
        JobFailed,
        JobMissing,
        JobNotFound,
        LockBusy,
        LockLost,
        OperationConflict,
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
    from streamworker.core.lane import Lane
    from streamworker.core.limits import Concurrency, Dependency, Rate
    from streamworker.core.outcome import Skip, Snooze
    from streamworker.core.retry import Retry
    from streamworker.core.router import Route
    from streamworker.core.signature import BadArguments
    from streamworker.core.states import Disposition, ErrorClass, Status
    from streamworker.effects.fences import fenced_update, touch
    from streamworker.effects.operation import Operation
    from streamworker.effects.transaction import Transaction
    from streamworker.flow.cache import Cache
    from streamworker.flow.dependency import DependencyCall
    from streamworker.flow.locks import Lock
    from streamworker.outbox.enqueue import enqueue_in
    from streamworker.request import JobView, Options, Request
    from streamworker.sync_client import SyncClient, SyncJob
    from streamworker.task import Call, Task
    from streamworker.worker.worker import Worker

__version__ = "0.1.0.dev0"

__all__ = [
    "App",
    "BadArguments",
    "Breaker",
    "Cache",
    "Call",
    "Cancel",
    "Client",
    "Coalesce",
    "Concurrency",
    "ConfigurationError",
    "ConnectionLost",
    "Context",
    "Dependency",
    "DependencyCall",
    "DependencyTimeout",
    "Disposition",
    "DurationError",
    "EnqueueRejected",
    "ErrorClass",
    "FencedOut",
    "IdempotencyConflict",
    "InvalidArgument",
    "Job",
    "JobFailed",
    "JobMissing",
    "JobNotFound",
    "JobView",
    "Lane",
    "Lock",
    "LockBusy",
    "LockLost",
    "Operation",
    "OperationConflict",
    "Options",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PersistentError",
    "Rate",
    "Request",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Route",
    "SerializationError",
    "ServerUnsuitable",
    "Skip",
    "Snooze",
    "Status",
    "StreamworkerError",
    "SyncClient",
    "SyncJob",
    "Task",
    "Transaction",
    "TransientError",
    "UnknownTask",
    "Worker",
    "__version__",
    "enqueue_in",
    "fenced_update",
    "touch",
]


#: Where each public name lives.
_NAMES_OF = {
    "streamworker.app": "App",
    "streamworker.client": "Client Job",
    "streamworker.context": "Context",
    "streamworker.core.breaker": "Breaker",
    "streamworker.core.errors": (
        "Cancel ConfigurationError ConnectionLost DependencyTimeout DurationError EnqueueRejected FencedOut "
        "IdempotencyConflict InvalidArgument JobFailed JobMissing JobNotFound LockBusy LockLost "
        "OperationConflict OutcomeUnknown PayloadTooLarge PersistentError ResultTimeout RetryAfter "
        "SerializationError ServerUnsuitable StreamworkerError TransientError UnknownTask"
    ),
    "streamworker.core.lane": "Lane",
    "streamworker.core.limits": "Concurrency Dependency Rate",
    "streamworker.core.outcome": "Skip Snooze",
    "streamworker.core.retry": "Retry",
    "streamworker.core.coalesce": "Coalesce",
    "streamworker.core.router": "Route",
    "streamworker.core.signature": "BadArguments",
    "streamworker.core.states": "Disposition ErrorClass Status",
    "streamworker.effects.fences": "fenced_update touch",
    "streamworker.effects.operation": "Operation",
    "streamworker.effects.transaction": "Transaction",
    "streamworker.flow.cache": "Cache",
    "streamworker.flow.dependency": "DependencyCall",
    "streamworker.flow.locks": "Lock",
    "streamworker.outbox.enqueue": "enqueue_in",
    "streamworker.request": "JobView Options Request",
    "streamworker.sync_client": "SyncClient SyncJob",
    "streamworker.task": "Call Task",
    "streamworker.worker.worker": "Worker",
}
_HOME = {name: module for module, names in _NAMES_OF.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'streamworker' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
