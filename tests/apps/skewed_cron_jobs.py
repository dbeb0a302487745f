"""The crons of `cron_jobs` in a process whose clock is wrong by CASE_SKEW seconds."""

from __future__ import annotations

import os
import time

_skew = float(os.environ["CASE_SKEW"])
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _skew
time.time_ns = lambda: _time_ns() + round(_skew * 1e9)

from tests.apps.cron_jobs import app as app  # noqa: E402 - under the wrong clock from the start
