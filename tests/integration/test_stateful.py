"""The scripts against a model of the protocol, in sequences that nobody thought of.

Each sequence of steps runs on a real server. After every step the reply, the transition log and everything
that is stored are compared with the model; at the end a run without faults must finish every job.
Every disposition is among what new requests were answered, some fifty times or more.

`STREAMWORKER_STATEFUL_EXAMPLES` sets the number of sequences (200); `STREAMWORKER_STATEFUL_SEED=random` makes
them other ones each time. `make mutants ARGS="--by sequences"` shows what this test notices.
"""

from __future__ import annotations

from collections import Counter

import pytest

from streamworker.core.states import Disposition
from tests.integration.stateful.bench import Wire
from tests.integration.stateful.running import EXAMPLES, run_examples
from tests.servers import ServerFactory


@pytest.mark.timeout(300 + EXAMPLES)  # shrinking takes minutes, and its result is worth waiting for
def test_no_sequence_of_steps_loses_a_job_or_records_two_outcomes(own_valkey: ServerFactory) -> None:
    wire = Wire(own_valkey().url)

    told: Counter[str] = Counter()

    ran, error = run_examples(wire, told=told)

    wire.close()
    if error is not None:
        raise error
    assert ran >= EXAMPLES
    print(*(f"{count} {disposition}" for disposition, count in told.most_common()), sep=", ")
    rare = {each: told[each] for each in Disposition if told[each] < EXAMPLES // 4}
    assert not rare, f"so few new requests were answered so, of {told.total()}: {rare}"
