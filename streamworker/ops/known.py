"""Whether anybody has declared what an operator names: a typing error would wait for ever without a word."""

from __future__ import annotations

from streamworker.core.gates import Gates
from streamworker.core.limits import DEPENDENCY_SCOPE
from streamworker.store.events import pairs
from streamworker.store.manifest import FIELD, Declaration, read
from streamworker.store.queue import Queue


async def scope_is_known(queue: Queue, scope: str) -> bool:
    """Whether a scope such as `lane:normal` is anybody's. Tenants are declared by nobody: all are known."""
    kind, _, name = scope.partition(":")
    if kind == "tenant":
        return True
    declared = await declarations(queue)
    match kind:
        case "task":
            return name in declared
        case "lane":
            return name in await _lanes(queue) | {each.lane for each in declared.values()}
        case _:
            return any(
                gate.scope == DEPENDENCY_SCOPE + name for each in declared.values() for gate in each.gates
            )


async def anybody(queue: Queue) -> bool:
    """Whether a worker or a job was ever there."""
    return bool(await queue.caller.command("EXISTS", queue.keys.meta, queue.keys.stats))


async def tasks(queue: Queue) -> list[str]:
    """Names of the tasks that workers have published."""
    return sorted(await declarations(queue))


async def lanes(queue: Queue) -> set[str]:
    """Lanes that an app has, as workers have published them; none if no worker was ever there."""
    text = await queue.caller.command("HGET", queue.keys.policies, "lanes")
    return set((text or b"").decode().split())


async def limit_is_known(queue: Queue, name: str) -> bool:
    """Whether a task declares the limit, or a limit that makes such a gate."""
    if await queue.caller.command("HEXISTS", queue.keys.policies, f"declared:{name}"):
        return True
    return any(
        Gates(task, each.arguments, each.gates).makes(name)
        for task, each in (await declarations(queue)).items()
        if each.gates
    )


async def declarations(queue: Queue) -> dict[str, Declaration]:
    """What workers have published of each task."""
    found = pairs(await queue.caller.command("HGETALL", queue.keys.meta))
    named = ((field.decode(), value) for field, value in found.items())
    read_ = ((field.removeprefix(FIELD), value) for field, value in named if field.startswith(FIELD))
    return {task: one for task, value in read_ if (one := read(task, value)) is not None}


async def _lanes(queue: Queue) -> set[str]:
    """Those that an app has, and those that ever had a job."""
    stats = await queue.caller.command("HKEYS", queue.keys.stats)
    counted = (field.decode().split(":") for field in stats)
    return await lanes(queue) | {each[1] for each in counted if each[0] == "enqueued"}
