"""Layer filters: presets, names and regular expressions."""

from __future__ import annotations

import contextlib
import re

import pytest

from modules.families.parts.part_classes import UNET_LAYERS
from modules.settings.layer_filter import LayerFilter, invalid_entry, layer_filter, select_layers
from modules.system.errors import DarkroomError
from modules.system.patterns import PatternError

LAYERS = [
    "conv_in",
    "down_blocks.0.resnets.0.conv1",
    "down_blocks.0.attentions.0.proj_in",
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q",
    "mid_block.resnets.1.conv2",
]


@pytest.mark.parametrize(
    ("preset", "indices"),
    [("all", [0, 1, 2, 3, 4]), ("blocks", [1, 2, 3, 4]), ("attention_mlp", [2, 3]), ("attention", [3])],
)
def test_presets(preset: str, indices: list[int]) -> None:
    assert select_layers(layer_filter(preset, UNET_LAYERS), LAYERS, page="Training") == [LAYERS[n] for n in indices]


@pytest.mark.parametrize(
    ("names", "is_regex", "entries"),
    [
        ("attn1, ff,, ", False, ("attn1", "ff")),
        (r"^down_blocks\.[0,1], attn\d{1,2}, (a,b)", True, (r"^down_blocks\.[0,1]", r"attn\d{1,2}", "(a,b)")),
        (r"\(, [(],], a\\, [^)]", True, (r"\(", "[(]", "]", r"a\\", "[^)]")),
        (" , ", True, ()),
    ],
)
def test_names_are_separated_by_commas_outside_of_brackets(
    names: str, is_regex: bool, entries: tuple[str, ...]
) -> None:
    assert layer_filter("custom", {}, names, is_regex=is_regex).entries == entries


def test_a_regular_expression_matches_anywhere_and_plain_names_are_literal() -> None:
    assert select_layers(LayerFilter((r"resnets\.\d\.conv\d$",), is_regex=True), LAYERS, page="") == [
        LAYERS[1],
        LAYERS[4],
    ]
    with pytest.raises(DarkroomError, match=re.escape("No layer's name contains 'conv.', which")):
        select_layers(LayerFilter(("conv.",)), LAYERS, page="Training")


def test_an_entry_that_takes_nothing_and_an_invalid_one_are_named() -> None:
    assert LayerFilter(("attn1", "atn2")).idle_entries(LAYERS) == ["atn2"]
    assert invalid_entry(LayerFilter(("attn1", "(attn"), is_regex=True)) == (
        "(attn",
        "missing ), unterminated subpattern at position 0",
    )
    assert invalid_entry(LayerFilter(("(attn",))) is None


@pytest.mark.parametrize("entry", ["(a+)+$", r"(\w+)*x", "(?:.+){2,}x", r"([a-z]+\d*)*$", r"([a-z]{1,9}?)+_"])
def test_a_repetition_of_a_repetition_ends(entry: str) -> None:
    found = LayerFilter(("attn", entry), is_regex=True)
    assert invalid_entry(found) is None
    with contextlib.suppress(PatternError):
        found.takes("down_blocks.0.attentions.0." * 4 + "!")


@pytest.mark.parametrize(
    "entry", [r"^(\w+\.)+to_[qk]$", r"attn\d+", "(a|b)+", r"(a\+)+", "(a{2})+", r"blocks\.(\d+)\."]
)
def test_other_repetitions_are_valid(entry: str) -> None:
    assert invalid_entry(LayerFilter((entry,), is_regex=True)) is None
