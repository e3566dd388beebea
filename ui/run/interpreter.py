"""The interpreter of a window: threads take turns quickly, and no garbage collection stops all of them for long."""

from __future__ import annotations

import gc
import sys

from trainer.launch import SWITCH_INTERVAL_SECONDS

# New objects before a collection of the young generation, and how many collections of one generation are followed by
# one of the next. The first two take a few milliseconds; full ones take hundreds, and are rare this way.
_THRESHOLDS = (10_000, 10, 100)


def keep_interpreter_smooth() -> None:
    """Call it once, when the window is built: what exists by now stays until the end and is not collected.

    A run turns automatic collection off and on again by itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
