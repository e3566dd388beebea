"""The interpreter's settings beside a window."""

from __future__ import annotations

import gc
import sys

from ui.loop.pump import keep_interpreter_smooth


def test_full_collections_are_rare_and_threads_take_turns_quickly() -> None:
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    try:
        keep_interpreter_smooth()
        young, middle, full = gc.get_threshold()
        assert young * middle * full >= 1_000_000  # new objects between two full collections
        assert gc.get_freeze_count() > 0
        assert sys.getswitchinterval() < 0.001
        assert gc.isenabled()
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
