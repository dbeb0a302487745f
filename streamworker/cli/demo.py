"""`streamworker demo`: a small shop on an embedded server, with a worker killed midway."""

from __future__ import annotations

from typing import Annotated

import typer

from streamworker.cli.options import Json


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", help="How long jobs are enqueued.", min=2, max=3600)
    ] = 25,
    as_json: Json = False,
) -> int:
    """Run a small shop and account for every job.

    Starts an embedded Valkey, Postgres and two workers, enqueues jobs of which some fail, kills a worker
    midway, and ends by itself. Exit code 1 if the account does not balance.

    Example: streamworker demo --seconds 20
    """
    from streamworker.demo.driver import run_demo

    return run_demo(seconds, as_json=as_json)
