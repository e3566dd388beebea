"""The curves of a run: all points kept, drawn with the least and the greatest value of each pixel."""

from __future__ import annotations

import math
import random

import pytest

from ui.loop.series import EMPTY, Series, join_series, with_values


def test_adding_leaves_the_shorter_series_as_it_was() -> None:
    one = Series([(1, 0.5)])
    two = one.add(2, None)
    other = one.add(2, 9.0)
    three = two.add(3, math.inf)
    assert list(one) == [(1, 0.5)]
    assert list(other) == [(1, 0.5), (2, 9.0)]
    assert list(three) == [(1, 0.5), (2, None), (3, None)]
    assert [len(s) for s in (EMPTY, one, two, three)] == [0, 1, 2, 3]
    assert EMPTY.extent is None
    assert three.extent == (1, 3)


def test_a_step_that_is_trained_again_replaces_what_followed() -> None:
    series = Series((n, float(n)) for n in range(1, 6))
    assert list(series.add(3, 9.0)) == [(1, 1.0), (2, 2.0), (3, 9.0)]
    assert len(series) == 5
    joint = join_series({"loss": series}, {"loss": Series([(4, 8.0)]), "rate": Series([(4, 1.0)])})
    assert list(joint["loss"])[-2:] == [(3, 3.0), (4, 8.0)]
    assert list(joint["rate"]) == [(4, 1.0)]
    assert set(with_values(joint, 5, [("loss", 1.0)])) == {"loss", "rate"}


def test_the_nearest_step_and_the_range() -> None:
    series = Series([(10, 1.0), (20, None), (30, 3.0)])
    assert [series.nearest(s) for s in (-5, 14, 24, 99)] == [(10, 1.0), (10, 1.0), (20, None), (30, 3.0)]
    assert EMPTY.nearest(3) is None
    assert series.range(0, 99) == (1.0, 3.0)
    assert series.range(11, 99) == (3.0, 3.0)
    assert series.range(11, 29) is None
    assert EMPTY.range(0, 1) is None
    assert series.inside(10, 29) == 2


def test_a_few_outliers_are_cut_off() -> None:
    series = Series((n, 0.1 if n % 100 else 50.0) for n in range(1, 1001))
    assert series.range(0, 2000, cut=0.02) == (0.1, 0.1)
    assert series.range(0, 2000) == (0.1, 50.0)


def test_a_short_line_is_drawn_point_by_point_and_reaches_both_edges() -> None:
    series = Series((n, float(n) if n != 5 else None) for n in range(1, 11))
    assert series.points_to_draw(4, 7, 100) == [(3, 3.0), (4, 4.0), (6, 6.0), (7, 7.0), (8, 8.0)]
    assert EMPTY.points_to_draw(0, 1, 100) == []


@pytest.mark.parametrize("zoom", [(0.0, 100_000.0), (20_000.0, 60_000.0)])
def test_of_many_points_each_pixel_keeps_its_least_and_greatest(zoom: tuple[float, float]) -> None:
    draw = random.Random(1)
    values = [draw.random() for _ in range(100_000)]
    values[33_333], values[44_444] = 99.0, -99.0  # no spike may be lost
    series = Series(enumerate(values, 1))
    points = series.points_to_draw(*zoom, 500)
    assert len(points) <= 2 * 502 + 1
    steps = [step for step, _ in points]
    assert steps == sorted(steps)
    assert {99.0, -99.0} <= {value for _, value in points}
    low, high = zoom
    width = (high - low) / 500
    for column in (0, 77, 499):
        inside = [v for s, v in enumerate(values, 1) if low + column * width <= s < low + (column + 1) * width]
        drawn = [v for s, v in points if low + column * width <= s < low + (column + 1) * width]
        assert (min(drawn), max(drawn)) == (min(inside), max(inside))


def test_many_gaps_draw_nothing() -> None:
    assert Series((n, None) for n in range(5000)).points_to_draw(0, 5000, 10) == []
