"""Our own older config versions: every value keeps its meaning, and nothing of a file is lost."""

import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.config.codec import decode, encode, load_file, save_file
from modules.config.migrations.chain import NEWEST_DARKROOM
from modules.config.migrations.darkroom_steps import (
    to_darkroom_2,
    to_darkroom_4,
    to_darkroom_5,
    to_darkroom_6,
    to_darkroom_7,
)
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.config.usage import adapter_form, trained_parts
from modules.families.registry import FAMILIES
from modules.settings.edit import get_path, set_path
from modules.system.problem import Problem
from tests.builders.mutations import without_some
from tests.unit.strategies import json_values
from tests.unit.test_codec import GROUPED, Grouping, assert_sound, holder_of, places

FIXTURES = Path(__file__).parent / "fixtures"
VERSION_1 = FIXTURES / "darkroom_1.json"

VALUES: dict[str, Any] = {
    "model.family.prediction_type": "v_prediction",
    "data.aspect_ratio_bucketing": False,
    "data.max_aspect_ratio": 3.0,
    "concepts.0.text.keep_tags_count": 3,
    "concepts.0.text.tag_dropout": True,
    "concepts.0.text.tag_dropout_mode": "random_weighted",
    "concepts.0.text.tag_dropout_probability": 0.2,
    "concepts.0.text.randomize_capitalization": True,
    "concepts.0.text.capitalization_modes": "title",
    "concepts.0.text.capitalization_probability": 0.3,
    "concepts.0.text.lowercase_first": True,
    "training.layer_filter": "custom",
    "training.layer_filter_names": "attn",
    "training.layer_filter_regex": True,
    "training.clip_grad_norm": 0.5,
    "training.max_consecutive_skipped_steps": 3,
    "training.fallback_train_dtype": "float32",
    "training.low_precision_updates": "stochastic",
    "training.noise.noising_weight": 2.0,
    "training.noise.noising_bias": 1.5,
    "training.method.gradient_truncation": "fixed",
    "training.method.backprop_steps": 4,
    "training.method.backprop_steps_min": 2,
    "training.method.target_reward": 5.0,
    "training.method.held_out_reward": "symmetry",
    "reward.num_images": 7,
    "reward.early_stopping_patience": 4,
    "validation.early_stopping_patience": 2,
    "sampling.also_without_ema": True,
}


OF_SDXL: dict[str, Any] = {
    "model.family.name": "sdxl",
    "model.family.prediction_type": "v_prediction",
    "model.family.zero_terminal_snr": "on",
    "model.family.clip_skip": 1,
    "model.family.clip_skip_2": 3,
    "model.family.prompt_weighting": True,
    "parts.unet.file": "models/unet-Q8_0.gguf",
    "parts.vae.file": "models/vae.safetensors",
    "adapter.decompose": True,
    "training.method.beta": 100.0,
}


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_a_whole_file_keeps_what_only_its_family_has(version: int) -> None:
    """The files were written by programs of these versions, with all settings."""
    loaded = load_file(FIXTURES / f"darkroom_{version}.json")
    assert (loaded.was_migrated, loaded.problems) == (True, [])
    assert {path: get_path(loaded.config, path) for path in OF_SDXL} == OF_SDXL
    assert get_path(loaded.config, "adapter.decompose_output_axis") is (version == 2)
    assert loaded.config.unknown == {}


@GROUPED
@pytest.mark.parametrize("version", range(1, NEWEST_DARKROOM))
def test_each_key_of_an_older_file_may_be_missing_or_anything(version: int, grouped: Grouping) -> None:
    whole = json.loads((FIXTURES / f"darkroom_{version}.json").read_text())
    for group in grouped([p for p in places(whole) if isinstance(p[-1], str)]):
        for change in (None, "nonsense", [1], {"a": 1}, float("nan"), 10**400, ...):
            tree = deepcopy(whole)
            for place in group:
                holder = holder_of(tree, place)
                holder.pop(place[-1])
                if change is not ...:
                    holder[place[-1]] = deepcopy(change)
            assert isinstance(decode(tree).config, Config)


@given(
    version=st.integers(1, NEWEST_DARKROOM - 1), stated=st.integers(-2, NEWEST_DARKROOM + 2), seed=st.integers(0, 2**32)
)
def test_any_keys_of_an_older_file_may_be_missing(version: int, stated: int, seed: int) -> None:
    tree = json.loads((FIXTURES / f"darkroom_{version}.json").read_text())
    rng = random.Random(seed)
    assert_sound(decode({**without_some(tree, rng, rng.random()), "darkroom_version": stated}))


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ({}, {"name": "sd"}),
        ({"family": "sdxl"}, {"name": "sdxl"}),
        ({"clip_skip": 1}, {"name": "sd", "clip_skip": 1}),
        ({"family": {"name": "sdxl", "clip_skip": 2}, "clip_skip": 1}, {"name": "sdxl", "clip_skip": 2}),
        ({"family": "sdxl", "clip_skip_2": None}, {"name": "sdxl", "clip_skip_2": None}),
    ],
)
def test_the_settings_of_a_family_are_found_wherever_they_are(model: dict[str, Any], family: dict[str, Any]) -> None:
    """Also in a file without a version, which has the names of any version."""
    for stated in ({}, {"darkroom_version": 3}):
        loaded = decode({**stated, "model": model, "training": {"epochs": 3}})
        assert loaded.problems == []
        assert {name: getattr(loaded.config.model.family, name) for name in family} == family


def test_the_second_clip_skip_waits_for_a_family_with_two_encoders() -> None:
    config = decode({"darkroom_version": 3, "model": {"family": "sd", "clip_skip": 1, "clip_skip_2": 4}}).config
    assert not hasattr(config.model.family, "clip_skip_2")
    chosen, _ = set_path(config, "model.family", "sdxl")
    assert get_path(chosen, "model.family.clip_skip_2") == 4


LOSSES: dict[str, Any] = {
    "weighting": "min_snr",
    "mix.mse.strength": 0.0,
    "mix.mae.strength": 0.5,
    "mix.log_cosh.strength": 0.25,
    "mix.huber.strength": 2.0,
    "mix.huber.delta": 0.3,
    "mix.huber.schedule": "snr",
    "mix.huber.form": "pseudo_huber",
    "mix.smooth_l1.strength": 0.0,
    "mix.smooth_l1.delta": 1.0,
}


def test_a_whole_file_of_version_4_keeps_its_losses() -> None:
    loss = load_file(FIXTURES / "darkroom_4.json").config.training.loss
    assert {path: get_path(loss, path) for path in LOSSES} == LOSSES


@pytest.mark.parametrize(
    ("loss", "mix"),
    [
        ({"huber_delta": 0.5}, {"huber": {"delta": 0.5}}),
        (
            {"smooth_l1_strength": 1.0, "huber_form": "pseudo_huber"},
            {"smooth_l1": {"strength": 1.0, "form": "pseudo_huber"}},
        ),
        ({"mse_strength": 1.0, "mix": {"mse": {"strength": 2.0}}}, {"mse": {"strength": 2.0}}),
        ({"mix": {"mae": {"strength": 2.0}}}, {"mae": {"strength": 2.0}}),
    ],
)
def test_losses_are_entries_of_the_mix(loss: dict[str, Any], mix: dict[str, Any]) -> None:
    """Also in a file without a version, which has the names of any version."""
    assert to_darkroom_5({"training": {"loss": loss}}, [])["training"]["loss"] == {"mix": mix}
    for stated in ({}, {"darkroom_version": 4}):
        loaded = decode({**stated, "training": {"epochs": 3, "loss": loss}})
        assert loaded.problems == []
        settings = loaded.config.training.loss.mix.model_dump()
        assert {name: {key: settings[name][key] for key in entry} for name, entry in mix.items()} == mix


@given(json_values)
def test_the_step_to_version_5_takes_anything(value: Any) -> None:
    strength = {"huber_strength": value, "huber_delta": value}
    for loss in (value, {"mix": value, **strength}, {"mix": {"huber": value, "mse": value}, **strength}):
        to_darkroom_5({"training": {"loss": loss}}, [])
    to_darkroom_5({"training": value}, [])


@given(json_values)
def test_the_step_to_version_4_takes_anything(value: Any) -> None:
    for tree in ({"model": value}, {"model": {"family": value, "clip_skip": 1, "clip_skip_2": value}}):
        to_darkroom_4({**tree, "remembered": value}, [])
        to_darkroom_4({**tree, "remembered": {"model.family": value}}, [])


def test_a_whole_file_of_version_1_keeps_every_value() -> None:
    """The file was written by the last program of version 1, with a value other than the default for each new name."""
    loaded = load_file(VERSION_1)
    assert loaded.was_migrated
    assert {path: get_path(loaded.config, path) for path in VALUES} == VALUES
    assert [model.kind for model in loaded.config.reward.models] == ["brightness", "symmetry"]
    assert loaded.config.unknown["cloud"]["gpu"] == "H100"
    assert [p for p in loaded.problems if p.path != "cloud"] == []


def test_every_field_of_version_1_has_a_place() -> None:
    """Only the cloud section, which was removed, is left as unknown."""
    assert set(load_file(VERSION_1).config.unknown) == {"cloud"}


def test_saving_keeps_the_original_and_writes_the_newest_version(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_bytes(VERSION_1.read_bytes())
    config = load_file(file).config
    kept = save_file(config, file)
    assert kept is not None
    assert kept.read_bytes() == VERSION_1.read_bytes()
    assert json.loads(file.read_text(encoding="utf-8"))["darkroom_version"] == NEWEST_DARKROOM
    assert load_file(file).config == config
    assert not load_file(file).was_migrated


def test_what_was_remembered_is_renamed_too() -> None:
    remembered = {
        "training.method": {"alignprop": {"truncate": "fixed", "target": 3.0}},
        "adapter": {"loha": {"rank": 3}},
    }
    config = decode({"darkroom_version": 1, "remembered": remembered}).config
    assert config.remembered["training.method"]["alignprop"] == {"gradient_truncation": "fixed", "target_reward": 3.0}
    assert config.remembered["adapter"]["loha"] == {"rank": 3}


def test_a_list_file_of_version_1_is_read_by_its_own_names(tmp_path: Path) -> None:
    (tmp_path / "cats.json").write_text(
        '{"darkroom_concepts": 1, "concepts": [{"path": "a", "text": {"keep_tags": 4}}]}'
    )
    (tmp_path / "c.json").write_text('{"darkroom_version": 5, "concepts_file": "cats.json"}')
    loaded = load_file(tmp_path / "c.json")
    assert loaded.config.concepts[0].text.keep_tags_count == 4
    assert loaded.problems == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("data.max_aspect", "data.max_aspect_ratio"),
        ("concepts.3.text.drop_mode", "concepts.3.text.tag_dropout_mode"),
        ("reward.scorers.0.kind", "reward.models.0.kind"),
        ("training.method.truncate", "training.method.gradient_truncation"),
        ("training.epochs", "training.epochs"),
        ("", ""),
    ],
)
def test_an_entry_of_the_report_follows_its_setting(old: str, new: str) -> None:
    notes = [Problem(old, "It is odd.", "warning")]
    to_darkroom_2({}, notes)
    assert [note.path for note in notes] == [new]


def test_a_new_name_that_is_there_already_wins() -> None:
    tree = {"data": {"max_aspect": 2.0, "max_aspect_ratio": 3.0}}
    assert to_darkroom_2(tree, []) == {"data": {"max_aspect_ratio": 3.0}}


@pytest.mark.parametrize("version", [{"darkroom_version": 1}, {"darkroom_version": 2}, {}])
@pytest.mark.parametrize("name", ["lora", "loha", "lokr"])
def test_a_file_that_does_not_state_the_axis_of_dora_keeps_that_of_its_time(name: str, version: dict[str, int]) -> None:
    """DoRA was on the output axis by default until version 2; a file without a version may be from then."""
    own = {"name": name, "decompose": True}
    config = decode({**version, "adapter": own, "remembered": {"adapter": {"lora": own}}}).config
    assert get_path(config, "adapter.decompose_output_axis") is True
    assert config.remembered["adapter"]["lora"]["decompose_output_axis"] is True
    stated = decode({**version, "adapter": {**own, "decompose_output_axis": False}}).config
    assert get_path(stated, "adapter.decompose_output_axis") is False
    [warning] = [p for p in problems_of(config) if p.path == "adapter.decompose_output_axis"]
    assert warning.severity == "warning"
    assert all(program in warning.message for program in ("ComfyUI", "Forge", "A1111"))


@pytest.mark.parametrize("name", ["lora", "loha", "lokr"])
def test_dora_switched_on_now_is_on_the_axis_that_every_program_applies(name: str) -> None:
    for tree in ({"adapter": {"name": name}}, {"darkroom_version": 5, "adapter": {"name": name, "decompose": True}}):
        config, _ = set_path(decode(tree).config, "adapter.decompose", value=True)
        assert get_path(config, "adapter.decompose_output_axis") is False
        assert not [p for p in problems_of(config) if "DoRA" in p.message]


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "model",
                "data",
                "concepts",
                "training",
                "reward",
                "validation",
                "sampling",
                "adapter",
                "remembered",
                "parts",
            ]
        ),
        json_values,
    )
)
def test_the_step_is_total(tree: dict[str, Any]) -> None:
    """Any JSON loads: a missing section, or one that is no object, is ordinary input."""
    before = json.dumps(tree)
    to_darkroom_2(tree, [])
    assert json.dumps(tree) == before
    assert encode(decode({**tree, "darkroom_version": 1}).config)["darkroom_version"] == NEWEST_DARKROOM


@pytest.mark.parametrize(
    ("family", "denoiser"), [("sdxl", "unet"), ({"name": "sd"}, "unet"), ({"name": "z_image"}, "transformer")]
)
def test_the_files_of_parts_are_settings_of_the_parts(family: Any, denoiser: str) -> None:
    model = {"family": family, "denoiser_file": "d.gguf", "vae_file": "v.safetensors"}
    parts = {denoiser: {"dtype": "gguf"}, "vae": {"file": "newer.safetensors"}}
    notes = [Problem("model.vae_file", "It is missing.")]
    tree = to_darkroom_6({"model": model, "parts": parts}, notes)
    assert tree == {
        "model": {"family": family},
        "parts": {denoiser: {"file": "d.gguf", "dtype": "gguf"}, "vae": {"file": "newer.safetensors"}},
    }
    assert [note.path for note in notes] == ["parts.vae.file"]
    for stated in ({}, {"darkroom_version": 5}):
        assert decode({**stated, "model": model}).config.part("vae").file == "v.safetensors"
    assert to_darkroom_6({"model": {"vae_file": ""}, "parts": 3}, []) == {"model": {}, "parts": 3}


LARGE = {"flux": "text_encoder_2", "chroma": "text_encoder", "sd3": "text_encoder_3", "pixart": "text_encoder"}


def test_a_whole_file_of_version_6_trains_its_large_text_encoder() -> None:
    """The file was written by a program of that version, and implies it."""
    file = FIXTURES / "darkroom_6.json"
    assert "text_encoder_2" not in json.loads(file.read_text())["parts"]
    loaded = load_file(file)
    assert (loaded.was_migrated, loaded.problems) == (True, [])
    assert [part.name for part in trained_parts(loaded.config)] == ["transformer", "text_encoder_2"]


@pytest.mark.parametrize(("family", "encoder"), LARGE.items())
def test_files_before_version_7_state_what_they_implied(family: str, encoder: str) -> None:
    for model in ({"family": family}, {"family": {"name": family}}):
        tree = to_darkroom_7({"model": model, "parts": {encoder: {"dtype": "int8"}, "vae": {}}}, [])
        assert tree["parts"] == {encoder: {"train": True, "dtype": "int8"}, "vae": {}}
        assert to_darkroom_7({"model": model}, [])["parts"] == {encoder: {"train": True}}
    stated = {"model": {"family": family}, "parts": {encoder: {"train": False}}, "output": {"format": "diffusers"}}
    assert to_darkroom_7(stated, []) == stated
    for version, is_trained in ((6, True), (7, False)):
        for parts in ({}, {encoder: {"dtype": "bfloat16"}}):
            config = decode({"darkroom_version": version, "model": {"family": family}, "parts": parts}).config
            assert config.part(encoder).train is is_trained
            assert get_path(config, f"parts.{encoder}.train") is is_trained


@pytest.mark.parametrize("tree", [{}, {"model": {}}, {"model": {"family": "sdxl"}}, {"model": {"family": []}}])
def test_other_files_have_no_large_text_encoder_to_state(tree: dict[str, Any]) -> None:
    assert to_darkroom_7(tree, []) == tree
    for value in (None, 3, [], "x"):
        to_darkroom_7({**tree, "model": value}, [])
        assert to_darkroom_7({"model": {"family": "flux"}, "parts": value}, [])["parts"] == value


def test_new_runs_train_no_large_text_encoder() -> None:
    assert {n: p.name for n, f in FAMILIES.items() for p in f.trainable_parts if p.defaults} == LARGE
    config = Config()
    for family, encoder in LARGE.items():
        config, _ = set_path(config, "model.family", family)
        assert encoder not in [part.name for part in trained_parts(config)]
    config, _ = set_path(config, "model.family", "sd3")
    # Only what nobody set follows the part.
    config, _ = set_path(config, "parts.text_encoder_3.dtype", "bfloat16")
    assert not config.part("text_encoder_3").train
    config, _ = set_path(config, "parts.text_encoder_3.train", True)
    assert config.part("text_encoder_3").train


def test_a_file_of_version_6_keeps_the_names_of_its_adapter() -> None:
    usual = {n: f.adapter_form for n, f in FAMILIES.items() if f.adapter_form != "kohya"}
    for family, form in usual.items():
        for version, expected in ((6, "kohya"), (7, form)):
            config = decode({"darkroom_version": version, "model": {"family": family}}).config
            assert adapter_form(config) == expected
        chosen = {
            "darkroom_version": 6,
            "model": {"family": family},
            "output": {"format": "diffusers", "dtype": "float32"},
        }
        assert decode(chosen).config.output.format == "diffusers"
    assert decode({"darkroom_version": 6, "model": {"family": "sdxl"}}).config.output.format == "auto"
    assert to_darkroom_7({"model": {"family": "anima"}, "output": 3}, [])["output"] == 3


@pytest.mark.parametrize("version", [6, 7])
def test_a_file_over_a_preset_has_the_defaults_of_the_preset(version: int) -> None:
    below = Config.model_validate({"model": {"family": "flux"}})
    raw = {"darkroom_version": version, "model": {"family": "flux"}, "training": {"epochs": 3}}
    assert not decode(raw, over=below).config.part("text_encoder_2").train
