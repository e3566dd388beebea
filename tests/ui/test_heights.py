"""The heights of cards, and their columns."""

from __future__ import annotations

from dataclasses import replace

from modules.config.records import record_at
from modules.config.schema import Config
from ui.forms.binding import explanation
from ui.forms.layout import HEADING, ROW, card_height, distribute


def test_cards_go_to_the_lowest_column_in_their_order() -> None:
    assert distribute([100, 60, 30, 50], 2) == ([0, 1, 1, 1], 140)
    assert distribute([100, 0, 60], 3) == ([0, 0, 1], 100)
    assert distribute([], 2) == ([], 0)


def test_a_card_is_as_high_as_its_rows_and_the_lines_of_its_explanations() -> None:
    record = record_at(Config(), "training.epochs")
    assert record is not None
    plain = card_height([record, record], 0, [], width=400, measure=len)
    assert plain >= HEADING + 2 * ROW
    assert card_height([], 4, [], width=400, measure=len) == 0
    assert card_height([record], 2, [], width=400, measure=len) == plain + ROW
    one, two = (card_height([record, record], 0, ["a" * n, ""], width=400, measure=len) for n in (300, 400))
    assert plain < one < two


def test_a_high_last_card_does_not_make_one_column_much_higher() -> None:
    assert distribute([190, 370, 470, 190, 260, 420, 190, 430], 3) == ([0, 1, 2, 0, 2, 0, 2, 1], 920)


def test_an_explanation_is_a_whole_sentence() -> None:
    record = record_at(Config(), "training.epochs")
    assert record is not None
    text = "Zero: the product begins as zero (Hu et al. 2021), so that training starts at the base model. And more."
    help_of = replace(record, setting=replace(record.setting, help=text))
    assert explanation(help_of) == text.removesuffix(" And more.")
