"""What a batch comes to if all of it is new, as nearly always: made while Postgres takes the one before."""

from __future__ import annotations

from dataclasses import dataclass

from streamworker.postgres import rows
from streamworker.postgres.batch import Batch, Step
from streamworker.postgres.connection import concerns_data
from streamworker.postgres.folding import JobRow, fold
from streamworker.postgres.ordinary import Ordinary, sort_out


@dataclass(frozen=True, slots=True)
class Ready:
    """What is sent for the ordinary jobs of a batch; of others their moves, and what is sent for those."""

    ordinary: Ordinary
    steps: list[list[Step]]
    jobs: list[JobRow]
    #: Rows of `jobs` for COPY, of those that were enqueued in this batch: the others Postgres has already.
    job_rows: dict[str, bytes]
    moves: bytes  # all rows of `job_transitions`


def make_ready(batch: Batch, namespace: str) -> Ready | None:
    """None where something cannot be stored: the writer finds out what."""
    ordinary, others = sort_out(batch, namespace)
    steps = list(batch.steps(others).values())
    try:
        jobs = [fold(some[0].move.job_id, some) for some in steps]
        arrived = [row for row in jobs if row.task is not None]
        made = rows.job_rows(namespace, arrived)
        return Ready(
            ordinary,
            steps,
            jobs,
            {row.id: data for row, data in zip(arrived, made, strict=True)},
            b"".join(rows.move_rows([step for some in steps for step in some])),
        )
    except Exception as error:
        if not concerns_data(error):
            raise
        return None
