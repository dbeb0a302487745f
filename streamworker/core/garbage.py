"""Keeps the collector of reference cycles from looking through everything again and again."""

from __future__ import annotations

import gc

#: Objects made beyond those dropped since the collector's last look, by default: Python says 700 or 2,000. A
#: failed handler may leave a cycle that holds its arguments, so it is no more than a busy worker needs.
THRESHOLD = 10_000


def settle_down(threshold: int = THRESHOLD) -> None:
    """Once all is imported and made: what there is stays, and a look is taken after so many objects.

    What counts are dicts, lists, tuples and instances that may refer to others. Cycles that nobody refers to
    stand for as long as it takes to make that many; all else goes at once, as ever. A larger threshold that
    somebody has set stands, and so does 0, by which there is no collector.
    """
    gc.freeze()
    if 0 < gc.get_threshold()[0] < threshold:
        gc.set_threshold(threshold)
