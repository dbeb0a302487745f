"""How large the cases are: `STREAMWORKER_CASES_SCALE=10` makes ten times as many jobs where it matters."""

from __future__ import annotations

import os

SCALE = int(os.environ.get("STREAMWORKER_CASES_SCALE", "1"))
