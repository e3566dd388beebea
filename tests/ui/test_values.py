"""Values as text and back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.config.schema import Config
from modules.config.sections.model import Part
from modules.settings.every import Every
from modules.settings.field import FieldRecord, records_of
from tests.builders.for_each import for_each
from tests.ui.made_up import TeaConfig
from ui.forms.values import display, from_text, number, to_text, why_out_of_range

RECORDS_OF_CONFIG = tuple(records_of(Config))
RECORDS = {r.path: r for r in records_of(TeaConfig)}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_round_trips_through_text(value: float) -> None:
    record = RECORDS["training.learning_rate"]
    assert from_text(record, to_text(record, value)) == value


@given(st.integers())
def test_every_whole_number_round_trips_through_text(value: int) -> None:
    record = RECORDS["training.batch_size"]
    assert from_text(record, to_text(record, value)) == value


@given(st.lists(st.integers(1, 9999), min_size=1).map(tuple))
def test_every_list_of_numbers_round_trips_through_text(value: tuple[int, ...]) -> None:
    record = RECORDS["data.resolution_px"]
    assert from_text(record, to_text(record, value)) == value


@given(st.text())
def test_a_text_is_kept_unchanged(value: str) -> None:
    record = RECORDS["general.notes"]
    assert from_text(record, to_text(record, value)) == value


@pytest.mark.parametrize(
    ("value", "text"), [(1e-4, "0.0001"), (3e-6, "3e-6"), (16.0, "16"), (0.5, "0.5"), (0.0, "0"), (1e20, "1e+20")]
)
def test_floats_are_written_the_short_way(value: float, text: str) -> None:
    assert to_text(RECORDS["training.learning_rate"], value) == text


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 1e-4), ("0,5", 0.5), (" 7 ", 7.0), ("1 000", 1000.0), ("inf", math.inf)]
)
def test_numbers_are_read_in_many_ways(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "fast", "1,2,3", "0x10"])
def test_invalid_numbers_are_explained(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a number|Enter a number"):
        number(text)


def test_an_empty_entry_is_none_where_the_field_is_optional() -> None:
    assert from_text(RECORDS["tea.warmth"], "  ") is None
    assert to_text(RECORDS["tea.warmth"], None) == ""


def test_half_an_image_is_no_batch() -> None:
    with pytest.raises(ValueError, match=r"'1\.5' is not a whole number"):
        from_text(RECORDS["training.batch_size"], "1.5")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("tea.strength", 11, "11 is out of range. Allowed: from 0 to 10 leaves."),
        ("tea.strength", -1, "-1 is out of range. Allowed: from 0 to 10 leaves."),
        ("training.clip_grad_norm", 0.0, "0 is out of range. Allowed: above 0 to 10,000."),
        ("data.resolution_px", (512, 16), "16 is out of range. Allowed: from 32 to 8,192 px."),
        ("tea.strength", 10, ""),
        ("tea.warmth", None, ""),
        ("tea.has_milk", True, ""),
    ],
)
def test_a_number_out_of_range_is_reported_with_the_range(path: str, value: object, words: str) -> None:
    assert why_out_of_range(RECORDS[path], value) == words


def test_values_are_displayed_with_labels_and_units() -> None:
    shown = {path: display(record, record.default) for path, record in RECORDS.items()}
    assert shown["tea.has_milk"] == "off"
    assert shown["tea.flavour"] == "Sweet"
    assert shown["tea.brewing"] == "Slowly"
    assert shown["tea.warmth"] == "as it comes"
    assert shown["tea.strength"] == "4 leaves"
    assert shown["tea.refill"] == "every 2 hours"
    assert shown["concepts"] == "none"


@pytest.mark.parametrize("number", [1, 30])
def test_a_length_of_time_is_not_displayed_as_a_period(number: int) -> None:
    """A part that stops training after 30 epochs stopped "after every 30 epochs" in the list of differences."""
    epochs = Every(n=number, unit="epoch")
    shown = {r.label: display(r, epochs) for r in (*RECORDS_OF_CONFIG, *records_of(Part)) if r.kind == "every"}
    span = "1 epoch" if number == 1 else "30 epochs"
    for label, text in shown.items():
        assert (text == span) is (label.endswith(("after", "skip first"))), label
        assert text.endswith(("epoch", "epochs"))


@for_each(RECORDS_OF_CONFIG, named=lambda r: r.path)
def test_every_default_of_the_real_config_can_be_typed(record: FieldRecord) -> None:
    if record.kind in ("int", "float", "text", "int_list", "resolutions"):
        assert from_text(record, to_text(record, record.default)) == record.default


def test_a_unit_is_in_the_singular_for_one() -> None:
    units = {path: RECORDS[f"training.{path}"] for path in ("batch_size", "accumulation_steps")}
    assert [display(units["batch_size"], n) for n in (1, 4)] == ["1 image", "4 images"]
    assert [display(units["accumulation_steps"], n) for n in (1, 4)] == ["1 batch", "4 batches"]
    assert display(RECORDS["data.resolution_px"], (512,)) == "512 px"
