"""Which program wrote a file, in which of OneTrainer's versions, and the defaults of that version."""

from __future__ import annotations

from typing import Any

import pytest

from modules.config.migrations.chain import is_onetrainer
from modules.config.migrations.onetrainer_chain import Era, era_of, first_step_for, to_onetrainer_11
from modules.config.migrations.onetrainer_keys import FIRST_VERSION, KEYS, LAST_VERSION, NEWEST, PARTS, STEP_OF
from modules.system.problem import Problem
from tests.builders.for_each import for_each
from tests.unit.test_onetrainer_steps import CASES, FILES, Tree, migrated, notes_of

# -- which version a file is of


@pytest.mark.parametrize("name", [name for name in CASES if "amendment" not in name and name != "v02_sparse"])
def test_the_era_of_a_file_is_inferred_from_its_keys(name: str) -> None:
    file = {k: v for k, v in FILES[name].items() if k != "__version"}
    era = era_of(file)
    assert era.first <= int(name[1:3]) <= era.last
    assert first_step_for(file) <= era.last


@pytest.mark.parametrize(
    ("tree", "first", "last"),
    [
        ({}, 0, 11),
        ({"learning_rate": 1}, 0, 11),
        ({"optimizer": "ADAMW"}, 0, 0),
        ({"optimizer": {"optimizer": "ADAMW"}}, 0, 11),
        ({"optimizer_beta1": 1}, 0, 0),
        ({"optimizer_defaults": {}}, 0, 11),
        ({"train_unet": True}, 0, 2),
        ({"unet": {}}, 2, 11),
        ({"unet": 5}, 0, 11),
        ({"weight_dtype": "FLOAT_16"}, 0, 9),
        ({"weight_dtype": "FLOAT_16", "unet": {}}, 2, 9),
        ({"gradient_checkpointing": True}, 0, 4),
        ({"gradient_checkpointing": "ON"}, 5, 10),
        ({"gradient_checkpointing": None}, 0, 10),
        ({"lora_layer_preset": None}, 3, 6),
        ({"lora_layer_preset": "full", "save_every": 3}, 6, 7),
        ({"attention_mechanism": "XFORMERS"}, 0, 6),
        ({"attention_mechanism": "FLASH"}, 0, 11),
        ({"output_model_format": "KOHYA_LORA"}, 11, 11),
        ({"output_model_format": "SAFETENSORS", "training_method": "LORA"}, 0, 10),
        ({"output_model_format": "SAFETENSORS", "training_method": "EMBEDDING"}, 0, 11),
        ({"unet": {"offload_fraction": 0}}, 11, 11),
        ({"unet": {"guidance_scale": 1}}, 5, 11),
        ({"validation": True}, 4, 11),
        ({"optimizer": {"use_focus": True}}, 6, 8),
        # edited by hand: any version between the two is possible
        ({"save_after": 3, "layer_filter": "x"}, 5, 8),
    ],
)
def test_an_era(tree: Tree, first: int, last: int) -> None:
    assert era_of(tree) == Era(first, last)


def test_every_old_key_has_a_step_that_reads_it_or_is_kept() -> None:
    for key, version in STEP_OF.items():
        assert version <= LAST_VERSION[key]
        assert FIRST_VERSION.get(key, 0) <= LAST_VERSION[key]
    without_a_home = {"sequential_model_setup", "oft_coft", "coft_eps", "loss_function", "extra_model_name"}
    for key in LAST_VERSION.keys() - without_a_home:
        if key.startswith("align_prop"):
            continue  # supported here
        value = {"embeddings": [{}], "embedding_model_names": ["a"], "latent_caching_epochs": 1}.get(key, False)
        assert key not in migrated({key: "FLOAT_16" if "dtype" in key else value}), key
    for key in without_a_home:
        assert migrated({key: "x"})[key] == "x"


@pytest.mark.parametrize("version", [0, 3, 9, 10, "3", 3.0])
def test_the_migrated_version_is_reported(version: Any) -> None:
    notes = notes_of({"__version": version, "epochs": 5})
    assert [(n.severity, n.message) for n in notes] == [
        ("info", f"This is a OneTrainer config of version {int(version)}; it was migrated.")
    ]


def test_there_is_no_note_about_a_current_file() -> None:
    assert notes_of({"__version": 11, "epochs": 5}) == []
    assert notes_of({"epochs": 5}) == []
    assert notes_of({"__version": 11, "output_model_format": "SAFETENSORS"}) == [], "the raw default of version 11"


@pytest.mark.parametrize("version", ["eleven", "", "-1", -1, 3.5, True, [], {}, float("nan"), float("inf"), "9" * 5000])
def test_an_invalid_version_is_reported_and_inferred_from_the_keys(version: Any) -> None:
    tree = {"epochs": 5, "optimizer": "LION", "train_unet": False}
    notes: list[Problem] = []
    assert to_onetrainer_11({**tree, "__version": version}, notes) == migrated(tree)
    assert [note.severity for note in notes] == ["warning", "info"]
    assert "is not a valid OneTrainer config version" in notes[0].message


@pytest.mark.parametrize("version", [12, 99, 10**400])
def test_a_newer_version_loads_what_fits(version: int) -> None:
    tree = {"epochs": 5, "unet": {"gradient_checkpointing": False}, "brand_new": 1, "noising_weight": 1.0}
    notes: list[Problem] = []
    assert to_onetrainer_11({**tree, "__version": version}, notes) == {**tree, "__version": 11}
    assert [note.severity for note in notes] == ["warning"]


# -- defaults that changed without a step


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"__version": 8, "huber_strength": 0.5}, {"huber_delta": 0.1}),
        ({"sequential_model_setup": True, "lora_layers": "", "huber_strength": 0.5}, {"huber_delta": 0.1}),
        ({"__version": 9, "huber_strength": 0.5}, {}),
        ({"__version": 8, "huber_strength": 0}, {}),
        ({"__version": 8, "huber_strength": "x"}, {}),
        ({"__version": 8, "huber_strength": 0.5, "huber_delta": 2.0}, {}),
        ({"__version": 10, "cloud": {"enabled": True}}, {"cloud": {"enabled": True, "create": True}}),
        ({"__version": 10, "cloud": {"enabled": False}}, {}),
        ({"__version": 11, "cloud": {"enabled": True}}, {}),
        ({"__version": 10, "cloud": {"enabled": True, "create": False}}, {}),
        ({"__version": 9, "unet": {"weight_dtype": "NONE"}}, {"unet": {"weight_dtype": "FLOAT_32"}}),
        ({"__version": 10, "unet": {"weight_dtype": "NONE"}}, {}),
        ({"__version": 2, "model_type": "WUERSTCHEN_2"}, {"loss_weight_fn": "P2", "loss_weight_strength": 1.0}),
        ({"__version": 2, "model_type": "STABLE_DIFFUSION_15"}, {}),
        ({"__version": 3, "model_type": "WUERSTCHEN_2"}, {}),
    ],
)
def test_a_certain_version_restores_its_default(tree: Tree, expected: Tree) -> None:
    assert migrated(tree).items() >= expected.items()
    if not expected:
        unchanged = {**tree, "__version": 11}
        assert migrated(tree) == unchanged


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"huber_strength": 0.5}, "training.loss.huber_delta"),
        ({"cloud": {"enabled": True}}, "onetrainer.cloud.create"),
        ({"huber_strength": 0.0}, ""),
        ({"cloud": {"enabled": False}}, ""),
        ({"unet": {"weight_dtype": "NONE"}}, ""),
        ({"huber_strength": 0.5, "layer_filter": "", "lokr_dim": 1}, ""),  # certainly of the current version
    ],
)
def test_an_uncertain_version_is_reported_where_a_default_matters(tree: Tree, path: str) -> None:
    notes = notes_of(tree)
    assert migrated(tree) == {**tree, "__version": 11}
    assert [note.path for note in notes] == ([path] if path else [])
    assert all(note.severity == "info" and "the current default" in note.message for note in notes)


# -- which program wrote a file


@for_each(
    [
        {"optimizer": {"optimizer": "ADAMW"}, "unet": {"train": True}, "batch_size": 4},
        {"resolution": "1024"},
        {"__version": 3},
        {"__version": None},
        {"validation": True},
        {"train_text_encoder_epochs": 3},
        {"optimizer_beta1": 0.9},
        {"extra_model_name": ""},
        *({key: None} for key in sorted(KEYS)),
    ]
)
def test_a_sparse_onetrainer_file_is_recognized_by_its_keys(tree: Tree) -> None:
    assert is_onetrainer(tree)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"x": 1},
        {"darkroom_version": 4, "__version": 11, "epochs": 3},
        {"training": {"epochs": 3}, "epochs": 3},
        {"validation": {"every": {"unit": "epoch"}}},
        {"concepts": [{"path": "a"}]},
        {"pretrained_model_name_or_path": "x", "resolution": "1024", "learning_rate": 1e-4},
        {"train_data_dir": "x", "min_snr_gamma": 5, "gradient_checkpointing": True},
        {"LoRA_type": "Standard", "optimizer": "AdamW8bit"},
        {"ss_learning_rate": "0.0001", "resolution": "512"},
    ],
)
def test_other_files_are_not_taken_for_onetrainer_files(tree: Tree) -> None:
    assert not is_onetrainer(tree)


def test_the_parts_are_keys_of_theirs() -> None:
    assert set(PARTS) <= KEYS
    assert all(0 <= version <= NEWEST for version in (*FIRST_VERSION.values(), *LAST_VERSION.values()))
