"""Reading and editing a config by path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.config.schema import Config
from modules.config.sections.model import Part
from modules.optim.optimizers.adamw import AdamW
from modules.optim.optimizers.factored import Adafactor
from modules.settings.edit import get_path, set_path
from modules.settings.every import Every
from modules.settings.field import records_of
from tests.builders.for_each import for_each
from tests.unit.strategies import garbage, valid_values

FULL = Config.model_validate(
    {
        "parts": {"unet": {}, "text_encoder": {"train": False}},
        "concepts": [{"path": "a"}, {"path": "b"}],
        "sampling": {"prompts": [{"prompt": "a cat"}]},
    }
)
TOP = {r.path: r for r in records_of(Config)}
DEEP = {
    **TOP,
    **{r.path: r for r in records_of(Part, "parts.unet")},
    **{r.path: r for i in (0, 1) for r in records_of(TOP["concepts"].item or Part, f"concepts.{i}")},
    **{r.path: r for r in records_of(TOP["sampling.prompts"].item or Part, "sampling.prompts.0")},
    **{r.path: r for r in records_of(AdamW, "training.optimizer")},
}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value.model_dump() if hasattr(value, "model_dump") else value


@for_each(DEEP)
def test_every_path_gives_its_value_and_takes_it_back(path: str) -> None:
    value = get_path(FULL, path)
    assert set_path(FULL, path, value) == (FULL, [])
    assert set_path(FULL, path, plain(value)) == (FULL, [])


@for_each(TOP)
def test_an_empty_config_has_the_defaults_of_the_records(path: str) -> None:
    assert get_path(Config(), path) == TOP[path].default


@given(data=st.data(), path=st.sampled_from(sorted(DEEP)))
def test_a_value_that_fits_is_set_and_nothing_else_changes(data: st.DataObject, path: str) -> None:
    value = data.draw(valid_values(DEEP[path]))
    edited, problems = set_path(FULL, path, value)
    assert problems == []
    restored, problems = set_path(edited, path, get_path(FULL, path))
    assert problems == []
    assert restored == FULL


@given(path=st.sampled_from(sorted(DEEP)), value=garbage)
def test_any_value_is_set_or_is_a_problem_and_then_nothing_changes(path: str, value: Any) -> None:
    before = FULL.model_dump_json()
    edited, problems = set_path(FULL, path, value)
    if problems:
        assert edited is FULL
        assert [(p.path, p.severity) for p in problems] == [(path, "error")]
        assert len(problems[0].message) < 1000
    else:
        assert Config.model_validate(edited.model_dump()) == edited
    assert FULL.model_dump_json() == before


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("training.epochs", 0, "it should be at least 1."),
        ("training.epochs", "many", "'many' is not valid: it should be a whole number."),
        ("training.learning_rate", float("nan"), "nan is not valid"),
        ("model.family", "sd9", "there is no such choice; the choices are 'sd', 'sdxl'"),
        ("adapter.layers", "some", "'some' is not valid"),
        ("training.optimizer", {"name": "seven_league"}, "there is no such choice; the choices are 'adamw', "),
        ("data.resolution_px", [], "it should have at least one entry."),
        ("data.resolution_px", [16], "at least 32"),
        ("sampling.every", {"n": 1, "unit": "week"}, "is not valid"),
        ("sampling.every", "2step", """it should be a number and a unit, such as {"n": 10, "unit": "step"}."""),
        ("backup", 3, "it should be a group of settings in braces."),
        pytest.param("general.seed", 10**5000, "is not valid", id="seed of 5000 digits"),
        ("darkroom_version", 1, "is not valid"),
    ],
)
def test_an_invalid_value_is_reported_in_a_sentence(path: str, value: Any, words: str) -> None:
    config, problems = set_path(FULL, path, value)
    assert config is FULL
    assert words in problems[0].message
    assert problems[0].message.endswith(".")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "nonsense",
        "training.nonsense",
        "training.epochs.nonsense",
        "training.optimizer.beta2_decay",  # Adafactor's, and the optimizer is AdamW
        "concepts.2.path",
        "concepts.-1.path",
        "concepts.\u00b2.path",  # a digit to str.isdigit, and none to int
        "concepts.0.nonsense",
        "concepts.path",
        "parts.unet.nonsense",
        "parts.unett.train",  # a slip of the pen made a part of that name
        "parts..train",
        "unknown.foo",
        "training.",
    ],
)
def test_a_path_that_is_not_there_is_an_error(path: str) -> None:
    with pytest.raises(KeyError, match="no setting"):
        get_path(FULL, path)
    with pytest.raises(KeyError, match="no setting"):
        set_path(FULL, path, 1)


def test_a_part_missing_from_the_config_has_its_defaults_and_can_be_set() -> None:
    assert get_path(Config(), "parts.vae.dtype") == "float32"
    config, problems = set_path(Config(), "parts.vae.dtype", "float16")
    assert problems == []
    assert dict(config.parts) == {"vae": Part(dtype="float16")}
    config, _ = set_path(config, "parts.unet", Part(train=False))
    assert set(config.parts) == {"vae", "unet"}


def test_a_part_of_another_family_that_the_file_names_can_be_set() -> None:
    config = Config.model_validate({"parts": {"text_encoder_2": {"train": False}}})
    assert get_path(config, "parts.text_encoder_2.train") is False
    assert set_path(config, "parts.text_encoder_2.train", True)[0].parts["text_encoder_2"].train


def test_a_list_is_set_as_a_whole_its_entries_field_by_field() -> None:
    config, problems = set_path(FULL, "concepts.1.repeats", 2.5)
    assert problems == []
    assert [c.repeats for c in config.concepts] == [1.0, 2.5]
    config, problems = set_path(FULL, "concepts", [{"path": "c"}])
    assert [c.path for c in config.concepts] == ["c"]
    with pytest.raises(KeyError, match="whole list"):
        set_path(FULL, "concepts.0", {"path": "c"})


def test_sections_are_values_too() -> None:
    config, problems = set_path(FULL, "training.optimizer", Adafactor(weight_decay=0.1))
    assert problems == []
    assert config.training.optimizer == Adafactor(weight_decay=0.1)
    assert set_path(config, "training.optimizer.clip_threshold", 2.0)[0].training.optimizer == Adafactor(
        weight_decay=0.1, clip_threshold=2.0
    )
    assert set_path(FULL, "backup.every", Every(n=5, unit="step"))[0].backup.every.n == 5
