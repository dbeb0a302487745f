"""What is known of the tasks of a namespace: what workers have published of each."""

from __future__ import annotations

from typing import Any

from streamworker.ops.known import declarations
from streamworker.store.manifest import Declaration
from streamworker.store.queue import Queue


async def tasks(queue: Queue) -> list[dict[str, Any]]:
    """`tasks --json`: the tasks that workers have published, by name; times in seconds."""
    return [_row(name, declared) for name, declared in sorted((await declarations(queue)).items())]


def _row(name: str, declared: Declaration) -> dict[str, Any]:
    return {
        "task": name,
        "lane": declared.lane,
        "arguments": list(declared.arguments),
        "required": list(declared.required),
        "takes_more": declared.takes_more,
        "key": declared.key,
        "window_seconds": None if declared.key is None else declared.window_ms / 1000,
        "retry": declared.retry,
        "timeout_seconds": declared.timeout,
        "deadline_seconds": declared.deadline_ms / 1000 if declared.deadline_ms else None,
        "max_starts": declared.max_starts,
        "gates": [f"{gate.kind}:{gate.scope}" for gate in declared.gates],
        "cron": None if declared.cron is None else declared.cron.spec,
        "coalesce": None if declared.coalesce is None else declared.coalesce.mode,
    }
