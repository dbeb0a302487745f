"""Runs first in processes that tests start: they begin as if OpenTelemetry's SDK were not installed.

redis-py imports it where it finds it, which takes a fifth of a worker's start. Tests of traces have it in
their own process.
"""

import sys

sys.modules["opentelemetry.sdk.metrics"] = None  # type: ignore[assignment]
