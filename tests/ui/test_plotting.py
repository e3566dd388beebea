"""The calculations of the chart."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from trainer.events import ValidationFinished
from ui.widgets.plotting import log_ticks, nearest, tick_label, ticks, weighted_course


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(1, 20))
def test_ticks_lie_inside_and_are_not_too_many(low: float, span: float, max_count: int) -> None:
    found = ticks(low, low + span, max_count)
    assert len(found) <= max(max_count + 1, 5)
    assert len(found) >= 2
    assert all(low - span * 1e-6 <= t <= low + span * (1 + 1e-6) for t in found)
    assert found == sorted(found)


def test_ticks_are_round() -> None:
    assert ticks(0.0, 0.5, 5) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert ticks(1, 400, 5) == [100, 200, 300, 400]
    assert ticks(1, 1, 5) == []


def test_a_single_tick_is_avoided() -> None:
    """A reward from 0.53 to 0.74 used to have the single tick 0.6, which shows no scale."""
    assert ticks(0.505, 0.757, 2) == [0.6, 0.7]
    assert ticks(0.517, 0.594, 2) == [0.52, 0.54, 0.56, 0.58]


def test_tick_labels_are_short() -> None:
    assert [tick_label(v) for v in (0.05, 100.0, 20_000.0, 0.0)] == ["0.05", "100", "20k", "0"]


def test_ticks_of_a_logarithmic_scale_are_round() -> None:
    assert log_ticks(0.009, 1.2, 4) == [0.01, 0.1, 1.0]
    assert log_ticks(0.08, 0.3, 4) == [0.1, 0.2]
    assert log_ticks(1e-6, 1e-3, 20) == [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3]
    assert log_ticks(0.11, 0.14, 4) == ticks(0.11, 0.14, 4)
    assert log_ticks(1e-30, 1.0, 4) == [1e-30, 1e-22, 1e-14, 1e-06]
    assert log_ticks(-1.0, 1.0, 4) == []


def test_the_nearest_point() -> None:
    points = [ValidationFinished(n, 0.1) for n in (1, 10, 20)]
    assert [nearest(points, s).step for s in (-5, 4, 6, 14, 16, 99)] == [1, 1, 10, 10, 20, 20]  # type: ignore[union-attr]
    assert nearest([], 3) is None


def test_the_weighted_loss_is_drawn_if_it_differs() -> None:
    same = [ValidationFinished(0, 0.5, weighted_loss=0.5), ValidationFinished(5, 0.25, weighted_loss=0.25)]
    assert weighted_course(same) == []
    assert weighted_course([ValidationFinished(0, 0.5)]) == []  # an older run's
    another = [
        *same,
        ValidationFinished(9, 0.5, weighted_loss=0.1),
        ValidationFinished(12, 0.5, weighted_loss=math.nan),
    ]
    assert weighted_course(another) == [(0, 0.5), (5, 0.25), (9, 0.1)]
