"""The heights of cards, and their columns."""

from __future__ import annotations

from modules.config.schema import Config
from ui.forms.heights import HEADING, ROW, card_height, distributed
from ui.forms.records import record_at


def test_cards_go_to_the_lowest_column_in_their_order() -> None:
    assert distributed([100, 60, 30, 50], 2) == ([0, 1, 1, 1], 140)
    assert distributed([100, 0, 60], 3) == ([0, 0, 1], 100)
    assert distributed([], 2) == ([], 0)


def test_a_card_is_as_high_as_its_rows_and_the_lines_of_its_explanations() -> None:
    record = record_at(Config(), "training.epochs")
    assert record is not None
    plain = card_height([record, record], 0, [], width=400, measure=len)
    assert plain >= HEADING + 2 * ROW
    assert card_height([], 4, [], width=400, measure=len) == 0
    assert card_height([record], 2, [], width=400, measure=len) == plain + ROW
    one, two = (card_height([record, record], 0, ["a" * n, ""], width=400, measure=len) for n in (300, 400))
    assert plain < one < two
