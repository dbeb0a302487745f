"""`streamworker gates`: who holds which gate, and who waits there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamworker.cli.options import AppName, Json, RedisUrl, on_queue, settings_of
from streamworker.cli.output import emit_json, print_facts, print_table, say

if TYPE_CHECKING:
    from streamworker.store.queue import Queue


def gates(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One gate, such as entity:order:7.")
    ] = None,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show the gates that are paused, held or waited at, or who does so at one of them.

    Example: streamworker gates entity:order:7
    """
    from streamworker.ops import gates as look_at

    settings = settings_of(app, redis_url)

    async def look(queue: Queue) -> Any:
        return await (look_at.gates(queue) if name is None else look_at.gate(queue, name))

    found = on_queue(settings, look)
    if as_json:
        emit_json(found)
    elif name is not None:
        _show(found)
    elif not found:
        say(f"note: no gate of {settings.namespace} is paused, held or waited at")
    else:
        print_table(
            ["gate", "state", "#holders", "#waiting", "lanes", "opens at"],
            [
                (
                    row["gate"],
                    row["state"],
                    row["holders"],
                    sum(row["waiting"].values()),
                    ", ".join(f"{lane} {count}" for lane, count in row["waiting"].items()),
                    row["opens_at"],
                )
                for row in found
            ],
        )


def _show(found: dict[str, Any]) -> None:
    stands = found["paused"] or found["breaker"]
    said = None
    if stands is not None:
        ends = f" until {stands['until']}" if stands["until"] else ""
        by = f" by {stands['by']}" if stands["by"] else ""
        said = f"{stands['state']} since {stands['since']}{ends}{by}: {stands['reason'] or 'no reason given'}"
    print_facts(
        [
            ("gate", found["gate"]),
            ("state", said),
            ("waiting", ", ".join(f"{lane} {count}" for lane, count in found["waiting"].items())),
        ]
    )
    if found["holders"]:
        print_table(
            ["holder", "task", "lane", "state", "since", "worker"],
            [
                (one["id"], one["task"], one["lane"], one["state"], one["since"], one["worker"])
                for one in found["holders"]
            ],
        )
    if found["waiters"]:
        print_table(
            ["waiter", "task", "lane"], [(one["id"], one["task"], one["lane"]) for one in found["waiters"]]
        )
