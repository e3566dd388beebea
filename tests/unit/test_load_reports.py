"""The report of a load: complete, without duplicates, and with paths that lead to a field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import decode, encode, load_file, save_file
from modules.settings.edit import get_path
from modules.system.problem import Problem

# A file of theirs, and the field that the note about it leads to.
LEADS_TO = [
    ({"__version": 2, "noising_weight": 2.0}, "training.noise.distribution"),
    ({"__version": 2, "noising_weight": "x"}, "training.noise.distribution"),
    ({"__version": 2, "noising_bias": 0.7}, "training.noise.noising_bias"),
    ({"__version": 5, "attention_mechanism": "XFORMERS"}, "training.attention"),
    ({"__version": 9, "weight_dtype": 5}, "parts"),
    ({"__version": 10, "unet": 5, "gradient_checkpointing": "OFF", "weight_dtype": "FLOAT_16"}, "parts.unet"),
    ({"optimizer": 5, "optimizer_beta1": 0.5}, "training.optimizer"),
    ({"huber_strength": 0.5}, "training.loss.mix.huber.delta"),
    ({"__version": 11, "training_method": "LORA", "layer_filter_preset": "blocks"}, "adapter.layers"),
    ({"__version": 11, "quantization": {"layer_filter_preset": "blocks"}}, "quantization.layers"),
    ({"__version": 11, "quantization": {"svd_dtype": "odd"}}, "quantization.svd_dtype"),
    ({"__version": 11, "concepts": [{"image": "odd"}]}, "concepts.0"),
    ({"__version": 11, "concepts": [{"text": 7}]}, "concepts.0"),
    ({"darkroom_version": 7, "concepts": [{"path": "a"}, 5, {"path": "b"}]}, "concepts"),
    ({"darkroom_version": 7, "data": {"resolution_px": [512, "x"]}}, "data.resolution_px"),
]


def notes_of(tree: dict[str, Any]) -> list[Problem]:
    """The notes about single settings."""
    return [p for p in decode(tree).problems if p.path]


@pytest.mark.parametrize(("tree", "path"), LEADS_TO, ids=lambda value: value if isinstance(value, str) else "")
def test_a_note_leads_to_a_field(tree: dict[str, Any], path: str) -> None:
    """Paths of OneTrainer's own, and those of entries that were left out, used to lead nowhere."""
    assert [note.path for note in notes_of(tree)] == [path]
    get_path(decode(tree).config, path)


def test_kept_keys_are_named() -> None:
    loaded = decode({"__version": 11, "frames": "25", "vb_loss_strength": 1.0})
    (note,) = loaded.problems
    assert note.message.endswith(": frames, vb_loss_strength.")
    many = decode({"__version": 11, **{f"odd_{number:02}": 1 for number in range(20)}}).problems
    assert many[0].message.endswith("odd_07 and 12 more.")
    assert loaded.config.unknown == {"onetrainer": {"frames": "25", "vb_loss_strength": 1.0}}


@pytest.mark.parametrize("beyond", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("place", ["odd", "unknown", "remembered", "onetrainer"])
def test_kept_values_that_are_not_finite_are_saved_as_text(tmp_path: Path, place: str, beyond: float) -> None:
    """JSON has no such numbers: they used to become null at the first save."""
    trees: dict[str, dict[str, Any]] = {
        "odd": {"darkroom_version": 7, "odd": [beyond]},
        "unknown": {"darkroom_version": 7, "unknown": {"odd": [beyond]}},
        "remembered": {"darkroom_version": 7, "remembered": {"training.optimizer": {"prodigy": {"d0": [beyond]}}}},
        "onetrainer": {"__version": 11, "odd": [beyond]},
    }
    source, saved = tmp_path / "source.json", tmp_path / "saved.json"
    source.write_text(json.dumps(trees[place]))
    config = load_file(source).config
    assert str([str(beyond)]) in str(encode(config))
    save_file(config, saved)
    assert load_file(saved).config == config


@pytest.mark.parametrize("version", ["darkroom_version", "__version"])
def test_kept_values_of_a_deep_file_load_again(version: str) -> None:
    """Kept a few levels deeper, it used to make the saved file one that is refused as a whole."""
    deepest: Any = 1
    for _ in range(97):
        deepest = [deepest]
    first = decode({version: 1, "epochs": 7, "training": {"epochs": 7}, "odd": deepest})
    assert first.config.training.epochs == 7
    again = decode(encode(first.config))
    assert (again.config, again.problems) == (first.config, [])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe{\x00}\x00", "not valid UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ', "not a JSON file"),
    ],
)
def test_an_invalid_file_is_reported_in_plain_words(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    (problem,) = load_file(file).problems
    assert words in problem.message
    assert "codec" not in problem.message
    assert "recursion" not in problem.message


def test_a_folder_is_reported_without_an_error_number(tmp_path: Path) -> None:
    (problem,) = load_file(tmp_path).problems
    assert problem.message == f"{tmp_path} cannot be read: it is a folder, a pipe or a device, not a file."


def test_the_successor_of_an_optimizer_is_what_the_file_meant() -> None:
    theirs = {"beta1": 0.5, "stochastic_rounding": True}
    chosen = decode({"__version": 10, "optimizer": {"optimizer": "LION_PRODIGY_ADV", **theirs}}).config
    assert (chosen.training.optimizer.name, chosen.training.optimizer.model_dump()["beta1"]) == ("prodigy_adv", 0.5)
    other = decode({"__version": 10, "optimizer_defaults": {"SIMPLIFIED_AdEMAMix": theirs}}).config
    assert other.remembered["training.optimizer"]["ademamix"] == {"beta1": 0.5}


def test_a_removed_optimizer_is_reported_once() -> None:
    notes = notes_of({"__version": 10, "optimizer": {"optimizer": "LION_PRODIGY_ADV"}})
    assert [note.path for note in notes] == ["training.optimizer"]


def test_kept_keys_of_a_separate_list_file_are_reported(tmp_path: Path) -> None:
    """They used to be kept silently."""
    (tmp_path / "concepts.json").write_text('[{"path": "a", "telepathy": 1}]')
    (tmp_path / "config.json").write_text('{"__version": 11, "concept_file_name": "concepts.json"}')
    loaded = load_file(tmp_path / "config.json")
    assert loaded.config.unknown == {"onetrainer": {"concepts": [{"telepathy": 1}]}}
    assert any(p.path == "concepts" and "telepathy" in p.message for p in loaded.problems)
