"""For the tests of your app: its jobs run for real, on a server in memory, by a clock that you move.

`async with harness(app) as t:` is all; see `Harness`. Needs the `testing` extra, unless a server is given.
"""

from streamworker.testing.clock import HandClock
from streamworker.testing.harness import Harness, harness
from streamworker.testing.records import migrate
from streamworker.testing.seen import SeenJob, SeenRetry

__all__ = ["HandClock", "Harness", "SeenJob", "SeenRetry", "harness", "migrate"]
