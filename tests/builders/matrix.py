"""Large test matrices: a pairwise cover by default, all rows with `pytest -m full`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import pytest


def matrix(
    *axes: list[Any], possible: Callable[..., bool] = lambda *row: True, most_daily: int | None = None
) -> list[Any]:
    """Return the product of the axes as parameters; those outside a pairwise cover are marked `full`.

    `possible(*row)` returns whether a row exists. Of slow rows, the `most_daily` that cover the most pairs run by
    default.
    """
    daily = set(pairwise(*axes, possible=possible)[:most_daily])
    rows = [row for row in product(*axes) if possible(*row)]
    return [row if row in daily else pytest.param(*row, marks=pytest.mark.full) for row in rows]


def full_cover(*axes: list[Any], possible: Callable[..., bool] = lambda *row: True) -> list[Any]:
    """Return a pairwise cover of the axes as parameters, all of them marked `full`."""
    return [pytest.param(*row, marks=pytest.mark.full) for row in pairwise(*axes, possible=possible)]


def pairwise(*axes: list[Any], possible: Callable[..., bool] = lambda *row: True) -> list[tuple[Any, ...]]:
    """Return rows that together cover every pair of values of every two axes; greedy and deterministic."""
    numbers: dict[Any, int] = {}
    pairs = {row: _as_bits(_pairs(row), numbers) for row in product(*axes) if possible(*row)}
    open_pairs = (1 << len(numbers)) - 1
    chosen = []
    while open_pairs:
        best = max(pairs, key=lambda row: (open_pairs & pairs[row]).bit_count())
        chosen.append(best)
        open_pairs &= ~pairs[best]
    return chosen


def _as_bits(pairs: set[Any], numbers: dict[Any, int]) -> int:
    """Return a set as an integer with a bit for each element, whose number it gets at its first appearance.

    Sets themselves take six times as long, in every process that collects the tests.
    """
    return sum(1 << numbers.setdefault(pair, len(numbers)) for pair in pairs)


def _pairs(row: tuple[Any, ...]) -> set[tuple[int, Any, int, Any]]:
    return {(i, a, j, b) for (i, a), (j, b) in combinations(enumerate(row), 2)}
