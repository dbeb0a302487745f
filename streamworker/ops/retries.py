"""Retries: what operators set beside the policies of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from streamworker.core.durations import Duration
from streamworker.core.errors import InvalidArgument
from streamworker.core.overrides import RetryOverride, check_retries_name
from streamworker.ops import settings, tune
from streamworker.ops.settings import Setting
from streamworker.store.queue import Queue


@dataclass(frozen=True, slots=True)
class TaskRetries:
    """What is set for one task, or `*` for each that has nothing of its own."""

    task: str
    override: RetryOverride
    set: Setting

    def json(self) -> dict[str, Any]:
        """The stable shape of a row of `retries --json`."""
        return {
            "task": self.task,
            "multiply": self.override.multiply,
            "jitter": self.override.jitter,
            "stop_codes": sorted(self.override.stop),
            "set": self.set.json(),
        }


async def retries(queue: Queue) -> list[TaskRetries]:
    """What is set, by task."""
    found = []
    for (_, task), setting in sorted((await settings.by_name(queue, "retries")).items()):
        try:
            found.append(TaskRetries(task, RetryOverride.parse(setting.value), setting))
        except ValueError:  # of a newer version
            continue
    return found


async def set_retries(
    queue: Queue,
    task: str,
    *,
    actor: str,
    multiply: float | None = None,
    jitter: float | None = None,
    stop: Iterable[str] = (),
    reason: str = "",
    duration: Duration | None = None,
) -> None:
    """Multiply the back-off of a task, spread it otherwise, or let error codes be dead letters at once.

    What is not said stays; codes come to those that are stopped already. Holds for retries that are decided
    from then on: due times that stand are not moved. Raises InvalidArgument.
    """

    def over(value: str | None) -> str:
        before = _read(value)
        word = RetryOverride(
            before.multiply if multiply is None else multiply,
            before.jitter if jitter is None else jitter,
            before.stop | frozenset(stop),
        ).word
        if not word:
            raise InvalidArgument("multiply", multiply, "changes nothing; take back what is set with --reset")
        return word

    name = check_retries_name(task)
    await settings.adjust(queue, "retries", name, over, actor=actor, reason=reason, duration=duration)


def _read(value: str | None) -> RetryOverride:
    try:
        return RetryOverride.parse(value or "")
    except ValueError:  # of a newer version
        return RetryOverride()


async def reset_retries(queue: Queue, task: str, *, actor: str, reason: str = "") -> bool:
    """Let what the tasks declare hold again. False: nothing else was set."""
    return await tune.change(queue, actor, "retries", check_retries_name(task), "", reason)
