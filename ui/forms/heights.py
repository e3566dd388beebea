"""The heights of cards before they are drawn, to distribute them over columns and to see what fits. No Tk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from modules.settings.field import FieldRecord

ROW, TALL_ROW, HEADING, GAP = 38.0, 84.0, 60.0, 16.0  # design pixels; the heading has the card's margins
_LINE, _BELOW, _BESIDE = 15.0, 6.0, 52.0  # of an explanation: a line, the distance below, the card's margins
_WORTH = 60.0  # how much lower a column must become for a card to leave the order

Measure = Callable[[str], float]


def card_height(
    records: Sequence[FieldRecord],
    num_preview_rows: int,
    explanations: Sequence[str],
    *,
    width: float,
    measure: Measure,
) -> float:
    """Return the height of a card in design pixels; 0 if it shows nothing.

    `explanations` are the texts below its rows, if there are any, and `measure(text)` returns the width of one line.
    """
    if not records:
        return 0.0
    rows = sum(TALL_ROW if record.setting.multiline else ROW for record in records)
    room = max(1.0, width - _BESIDE)
    lines = sum(math.ceil(measure(text) / room) * _LINE + _BELOW for text in explanations if text)
    return HEADING + GAP + rows + num_preview_rows * ROW + lines


def distributed(heights: Iterable[float], num_columns: int) -> tuple[list[int], float]:
    """Return the column of each card, and the height of the highest column.

    Each card is in the column that is lowest when it comes; then cards leave the highest one as long as that makes it
    clearly lower. A card without height is in the first column and takes no room.
    """
    sizes, columns, places = list(heights), [0.0] * num_columns, []
    for height in sizes:
        column = columns.index(min(columns)) if height else 0
        columns[column] += height
        places.append(column)
    while (move := _best_move(sizes, columns, places)) is not None:
        card, to = move
        columns[places[card]] -= sizes[card]
        columns[to] += sizes[card]
        places[card] = to
    return places, max(columns)


def _best_move(sizes: Sequence[float], columns: Sequence[float], places: Sequence[int]) -> tuple[int, int] | None:
    """Return a card of the highest column, and where it goes, so that both become as low as possible.

    The first card of a column stays: the first ones are the most important.
    """
    highest, lowest = columns.index(max(columns)), columns.index(min(columns))
    in_highest = [card for card, place in enumerate(places) if place == highest and sizes[card]]
    found = [(max(columns[highest] - sizes[card], columns[lowest] + sizes[card]), card) for card in in_highest[1:]]
    height, card = min(found, default=(columns[highest], 0))
    return (card, lowest) if height < columns[highest] - _WORTH else None
