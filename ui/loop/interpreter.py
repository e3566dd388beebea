"""The interpreter of a window: threads take turns quickly, and no garbage collection stops all of them for long."""

from __future__ import annotations

import gc
import math
import sys

from trainer.launch import SWITCH_INTERVAL_SECONDS

# New objects before a collection of the young generation, and how many collections of one generation are followed by
# one of the next. The first two take a few milliseconds; full ones take hundreds, and are rare this way.
_THRESHOLDS = (10_000, 10, 100)


# Two threads that only compute do a quarter less with it, so it is only for the moments of a busy window.
BUSY_SWITCH_INTERVAL_SECONDS = 0.000_02


def hurry() -> None:
    """Let a busy window's thread get the interpreter at once.

    Every call of Tk gives the interpreter up and waits for it, so long as the switch interval, while another thread
    computes: 40,000 calls that take 0.17 s alone took 3.0 s at 0.5 ms and 1.3 s at 0.1 ms, and take 0.6 s so.
    Only an interpreter that is kept smooth is changed.
    """
    if math.isclose(sys.getswitchinterval(), SWITCH_INTERVAL_SECONDS):
        sys.setswitchinterval(BUSY_SWITCH_INTERVAL_SECONDS)


def relax() -> None:
    """Undo `hurry`."""
    if math.isclose(sys.getswitchinterval(), BUSY_SWITCH_INTERVAL_SECONDS):
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)


def keep_interpreter_smooth() -> None:
    """Call it once, when the window is built: what exists by now stays until the end and is not collected.

    A run turns automatic collection off and on again by itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
