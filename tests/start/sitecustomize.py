"""Runs first in processes that tests start: they begin as if nobody had installed OpenTelemetry.

redis-py imports its SDK where it finds it, a fifth of a worker's start. Tests of traces have it in
their own process.
"""

import sys

sys.modules["opentelemetry"] = None  # type: ignore[assignment]
