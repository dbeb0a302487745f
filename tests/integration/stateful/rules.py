"""All rules together, and how an example begins.

Numbers pick a worker, job or claim by `nth`, so that every step stays possible while an example shrinks.
What happens often is a rule of its own, what is rare shares one: Hypothesis picks among rules evenly.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.integration.stateful.bench import LANES, LEASE
from tests.integration.stateful.damage import Damage
from tests.integration.stateful.gates import THROTTLED, THROTTLES, GateMoves
from tests.integration.stateful.keepers import Keepers
from tests.integration.stateful.producers import GATES, Operators, requests
from tests.model.job import Request


class QueueMachine(Operators, Keepers, Damage, GateMoves):
    """A shard with producers, two workers, a keeper, an operator, and what can go wrong."""

    @initialize(
        batch=st.lists(requests, min_size=2, max_size=6),
        gates=st.lists(st.sampled_from(GATES), min_size=2, max_size=2),
        taken=st.integers(0, 3),
        swept=st.booleans(),
        bounds=st.sampled_from(("", "", "depth priority 3 backlog", "depth priority 2 reject")),
        throttle=st.sampled_from(("", "", "", "", *THROTTLES)),
    )
    def start(
        self, batch: list[Request], gates: list[str], taken: int, swept: bool, bounds: str, throttle: str
    ) -> None:
        """`gates`: what jobs pass here, the first of them a small crowd at once.

        `bounds`, `throttle`: what a lane takes, and how often, beyond which jobs are deferred or refused.
        `taken`: jobs that the first worker has already. `swept`: a keeper was at work before.
        """
        self.gates = gates
        self.declare(bounds)
        if throttle:
            self.tune("throttle", THROTTLED[taken % 2], throttle)
        for _ in range(2):
            self.worker_starts()
        if swept:
            self.pass_time_swept(LEASE, [])
        self.arrive([*batch, *[Request("", LANES[taken % 2], gates="0")] * (1 + taken)])
        if taken:
            asked = self.ask(self.hands[0], LANES, taken)
            self.hear(self.hands[0], asked, self.exchange(asked))
