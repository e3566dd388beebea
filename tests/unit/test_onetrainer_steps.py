"""OneTrainer's config versions 0 to 11: each step, alone and in the chain, on whole, sparse and damaged files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.config.codec import decode
from modules.config.migrations.onetrainer_chain import (
    ONETRAINER_STEPS,
    Step,
    era_of,
    to_onetrainer_11,
    with_old_defaults,
)
from modules.config.migrations.onetrainer_keys import KEYS, STEP_OF
from modules.config.migrations.onetrainer_steps import (
    to_1,
    to_2,
    to_3,
    to_4,
    to_5,
    to_6,
    to_7,
    to_8,
    to_9,
    to_10,
    to_11,
)
from modules.system.problem import Problem
from tests.unit.strategies import garbage

Tree = dict[str, Any]

FIXTURES = Path(__file__).parent / "fixtures" / "onetrainer"
CASES: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in sorted(FIXTURES.glob("*.json"))}
FILES: dict[str, Tree] = {name: case["file"] for name, case in CASES.items()}
VERSIONS = ("00a", "00b", *(f"{n:02}" for n in range(1, 12)), "11_before_amendment")
every_step = pytest.mark.parametrize("step", ONETRAINER_STEPS, ids=lambda step: step.__name__)


def migrated(tree: Tree) -> Tree:
    return to_onetrainer_11(tree, [])


def notes_of(tree: Tree) -> list[Problem]:
    notes: list[Problem] = []
    to_onetrainer_11(tree, notes)
    return notes


def after(step: Step, tree: Tree) -> Tree:
    before = copy.deepcopy(tree)
    result = step(tree, [])
    assert json.dumps(tree) == json.dumps(before), "a step must not change what it is given"
    return result


def checkpointing(*, on: bool, activations: bool = False, fraction: float = 0.0) -> Tree:
    return {"gradient_checkpointing": on, "activation_offloading": activations, "offload_fraction": fraction}


# -- whole and sparse files of each version


def test_there_is_a_whole_and_a_sparse_file_of_each_version() -> None:
    assert set(CASES) == {f"v{version}_{kind}" for version in VERSIONS for kind in ("full", "sparse")}


@pytest.mark.parametrize("name", CASES)
def test_a_file_becomes_what_version_11_would_hold(name: str) -> None:
    case, notes = CASES[name], list[Problem]()
    given = copy.deepcopy(case["file"])
    assert to_onetrainer_11(given, notes) == case["expected"]
    assert [[note.severity, str(note)] for note in notes] == case["notes"]
    assert given == case["file"]


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_of_version_11_and_stays_as_it_is(name: str) -> None:
    """Also without a version in the file, as in presets: each step checks keys alone."""
    expected = CASES[name]["expected"]
    assert migrated(expected) == expected
    result = {k: v for k, v in expected.items() if k != "__version"}
    for step in ONETRAINER_STEPS if "timestep_distribution" in result else ONETRAINER_STEPS[4:]:
        result = after(step, result)
    assert result == expected


@pytest.mark.parametrize("name", [name for name in CASES if "full" in name])
@pytest.mark.parametrize("has_version", [True, False], ids=["version", "none"])
def test_nothing_of_a_whole_file_is_lost(name: str, has_version: bool) -> None:
    """Every value of the file is in the result or was reported, whatever version the file states."""
    file = {**FILES[name], "brand_new": {"deep": [1]}}
    if not has_version:
        file.pop("__version", None)
    result = migrated(file)
    assert result["brand_new"] == {"deep": [1]}
    assert file.keys() - result.keys() <= set(STEP_OF) | {key for key in file if key.startswith("optimizer_")}
    assert result == {**CASES[name]["expected"], "brand_new": {"deep": [1]}}


@pytest.mark.parametrize("name", CASES)
def test_a_file_loads_without_an_error_and_reports_another_family(name: str) -> None:
    result = decode(FILES[name])
    assert not [p for p in result.problems if p.severity == "error"]
    is_ours = FILES[name].get("model_type", "STABLE_DIFFUSION").startswith(("STABLE_", "FLUX_DEV"))
    assert is_ours == ("model.family" not in [p.path for p in result.problems])
    assert result.was_migrated


# -- 0 to 1


def test_values_of_an_optimizer_without_its_name_are_kept() -> None:
    """OneTrainer dropped them."""
    assert after(to_1, {"optimizer_beta1": 0.8, "optimizer_eps": None}) == {"optimizer": {"beta1": 0.8, "eps": None}}


def test_a_named_and_a_nested_optimizer_get_the_flat_values() -> None:
    assert after(to_1, {"optimizer": "LION", "optimizer_beta1": 0.8, "weight_decay": 0.1}) == {
        "optimizer": {"optimizer": "LION", "beta1": 0.8, "weight_decay": 0.1}
    }
    nested = {"optimizer": {"optimizer": "LION", "beta1": 0.7}, "optimizer_beta1": 0.8, "optimizer_defaults": {}}
    assert after(to_1, nested) == nested, "the nested value is newer, and the flat one is kept beside it"


@pytest.mark.parametrize("given", [5, [], True])
def test_an_invalid_optimizer_is_replaced_by_the_flat_values(given: Any) -> None:
    notes: list[Problem] = []
    assert to_1({"optimizer": given, "optimizer_eps": 1}, notes) == {"optimizer": {"eps": 1}}
    assert [note.severity for note in notes] == ["warning"]
    assert after(to_1, {"optimizer": given}) == {"optimizer": given}


@pytest.mark.parametrize(
    ("given", "expected", "severities"),
    [
        ({"loss_function": "MSE"}, {}, []),
        ({"loss_function": "HUBER"}, {"loss_function": "HUBER"}, ["warning"]),
        ({"loss_function": ["MSE"]}, {"loss_function": ["MSE"]}, ["warning"]),
        ({"extra_model_name": ""}, {}, []),
        ({"extra_model_name": None}, {}, []),
        ({"extra_model_name": "x"}, {"extra_model_name": "x"}, []),
        ({"extra_model_name": "x", "training_method": "LORA"},
         {"lora_model_name": "x", "training_method": "LORA"}, ["info"]),
        ({"extra_model_name": "x", "training_method": "EMBEDDING"},
         {"embedding_model_names": ["x"], "training_method": "EMBEDDING"}, ["info"]),
        ({"extra_model_name": "x", "training_method": "LORA", "lora_model_name": "y"},
         {"extra_model_name": "x", "training_method": "LORA", "lora_model_name": "y"}, []),
        ({"extra_model_name": ["x"], "training_method": "LORA"},
         {"extra_model_name": ["x"], "training_method": "LORA"}, []),
        ({"latent_caching_epochs": 1}, {}, []),
        ({"latent_caching_epochs": 10}, {"latent_caching_epochs": 10}, ["info"]),
        ({"latent_caching_epochs": {}}, {"latent_caching_epochs": {}}, ["info"]),
    ],
)  # fmt: skip
def test_keys_of_2023(given: Tree, expected: Tree, severities: list[str]) -> None:
    notes: list[Problem] = []
    assert to_1(given, notes) == expected
    assert [note.severity for note in notes] == severities


# -- 1 to 2


def test_flat_keys_of_parts() -> None:
    given = {
        "train_prior": False, "prior_model_name": "p", "train_unet_epochs": 5, "unet_learning_rate": None,
        "text_encoder_2_weight_dtype": "NONE", "decoder_vqgan_weight_dtype": "FLOAT_16", "vae_model_name": "v",
        "embedding_weight_dtype": "FLOAT_32", "embedding_learning_rate": 1,
    }  # fmt: skip
    assert after(to_2, given) == {
        "prior": {"train": False, "model_name": "p"},
        "unet": {"stop_training_after": 5, "stop_training_after_unit": "EPOCH", "learning_rate": None},
        "text_encoder_2": {"weight_dtype": "NONE"},
        "decoder_vqgan": {"weight_dtype": "FLOAT_16"},
        "vae": {"model_name": "v"},
        "embedding_weight_dtype": "FLOAT_32",
        "embedding_learning_rate": 1,
    }


def test_a_flat_key_beside_a_nested_one_is_kept_where_it_is() -> None:
    given = {"train_unet": True, "unet": {"train": False}, "unet_learning_rate": 1}
    assert after(to_2, given) == {"train_unet": True, "unet": {"train": False, "learning_rate": 1}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"embedding_model_names": ["a", "b"], "token_count": 2},
         {"embeddings": [{"model_name": "a", "token_count": 2}, {"model_name": "b"}]}),
        ({"embedding_model_names": "a"}, {"embeddings": [{"model_name": "a"}]}),
        ({"embedding_model_names": []}, {}),
        ({"embedding_model_names": [5]}, {"embedding_model_names": [5]}),
        ({"embedding_model_names": None}, {"embedding_model_names": None}),
        ({"token_count": 2, "embeddings": [{"token_count": 3}]},
         {"token_count": 2, "embeddings": [{"token_count": 3}]}),
        ({"token_count": 2, "embeddings": 5}, {"token_count": 2, "embeddings": 5}),
    ],
)  # fmt: skip
def test_the_flat_embedding(given: Tree, expected: Tree) -> None:
    assert after(to_2, given) == expected


# -- 2 to 3


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [
        (5.0, {"loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": 5}),
        ("3", {"loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": 3}),
        (0, {}), (None, {}), (False, {}), ("some", {}), ([], {}), (float("nan"), {}),
    ],
)  # fmt: skip
def test_min_snr_gamma(gamma: Any, expected: Tree) -> None:
    notes: list[Problem] = []
    assert to_3({"min_snr_gamma": gamma}, notes) == expected
    assert len(notes) == (gamma == "some" or gamma == [] or gamma != gamma)
    newer = {"min_snr_gamma": 5.0, "loss_weight_fn": "CONSTANT"}
    assert after(to_3, newer) == newer


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"embeddings": [{}]}, {}),
        ({"embeddings": []}, {}),
        ({"embeddings": [{"a": 1}], "embedding": {"a": 2, "b": 3}}, {"embedding": {"a": 2, "b": 3}}),
        ({"embeddings": [{"a": 1}], "embedding": None}, {"embedding": {"a": 1}}),
        ({"embeddings": [{"a": 1}, {"b": 1}], "additional_embeddings": [{"c": 1}]},
         {"embedding": {"a": 1}, "additional_embeddings": [{"c": 1}, {"b": 1}]}),
        ({"embeddings": [5]}, {"embeddings": [5]}),
        ({"embeddings": [{"a": 1}], "additional_embeddings": 5},
         {"embeddings": [{"a": 1}], "additional_embeddings": 5}),
    ],
)  # fmt: skip
def test_the_embedding_that_onetrainer_lost(given: Tree, expected: Tree) -> None:
    assert after(to_3, given) == expected


def test_switches_of_masks_move_to_the_concepts() -> None:
    concepts = [{"path": "a"}, 5, {"image": {"enable_random_circular_mask_shrink": False}}, {"image": 3}]
    result = after(to_3, {"circular_mask_generation": True, "random_rotate_and_crop": False, "concepts": concepts})
    assert result == {
        "concepts": [
            {"path": "a", "image": {"enable_random_circular_mask_shrink": True}},
            5,
            {"image": {"enable_random_circular_mask_shrink": False}},
            {"image": 3},
        ]
    }


# -- 3 to 8


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"noising_weight": 3.0}, {"timestep_distribution": "SIGMOID", "noising_weight": 3, "noising_bias": 0}),
        ({"noising_weight": 3.0, "noising_bias": 0.7},
         {"timestep_distribution": "SIGMOID", "noising_weight": 3, "noising_bias": 0.2}),
        ({"noising_bias": 0.5}, {"timestep_distribution": "UNIFORM", "noising_weight": 0, "noising_bias": 0}),
        ({"noising_weight": [], "noising_bias": 0.5},
         {"timestep_distribution": "UNIFORM", "noising_weight": 0, "noising_bias": 0}),
        ({"noising_weight": 1, "noising_bias": "x"},
         {"timestep_distribution": "UNIFORM", "noising_weight": 0, "noising_bias": 0}),
        ({"noising_weight": 1, "timestep_distribution": "BETA"},
         {"noising_weight": 1, "timestep_distribution": "BETA"}),
    ],
)  # fmt: skip
def test_a_noising_weight_meant_a_distribution(given: Tree, expected: Tree) -> None:
    assert after(to_4, given) == expected


def test_a_bias_without_effect_is_reported_when_it_is_removed() -> None:
    assert any("noising_bias = 0.3" in str(note) for note in notes_of({"__version": 3, "noising_bias": 0.3}))
    assert not any("noising_bias" in str(note) for note in notes_of({"__version": 3, "noising_bias": 0.5}))


@pytest.mark.parametrize(
    ("given", "expected"), [(True, "ON"), (False, "OFF"), ("CPU_OFFLOADED", "CPU_OFFLOADED"), (3, 3)]
)
def test_checkpointing_gets_names(given: Any, expected: Any) -> None:
    assert after(to_5, {"gradient_checkpointing": given}) == {"gradient_checkpointing": expected}
    assert after(to_5, {}) == {}


def test_saves_get_their_new_name() -> None:
    assert after(to_6, {"save_after": 5, "save_after_unit": "STEP"}) == {"save_every": 5, "save_every_unit": "STEP"}
    both = {"save_after": 5, "save_every": 6}
    assert after(to_6, both) == both


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"lora_layer_preset": None}, {"lora_layer_preset": "full"}),
        ({"lora_layer_preset": None, "lora_layers": " "}, {"lora_layer_preset": "full", "lora_layers": " "}),
        ({"lora_layer_preset": None, "lora_layers": "attn"}, {"lora_layer_preset": "custom", "lora_layers": "attn"}),
        ({"lora_layers": "attn"}, {"lora_layer_preset": "custom", "lora_layers": "attn"}),
        ({"lora_layers": ["attn"]}, {"lora_layers": ["attn"]}),
        ({"lora_layer_preset": "attn-mlp"}, {"lora_layer_preset": "attn-mlp"}),
        ({"attention_mechanism": "XFORMERS"}, {"attention_mechanism": "SDP"}),
        ({"attention_mechanism": "FLASH"}, {"attention_mechanism": "FLASH"}),
        ({"attention_mechanism": {}}, {"attention_mechanism": {}}),
    ],
)
def test_layer_presets_and_attention_implementations(given: Tree, expected: Tree) -> None:
    assert after(to_7, given) == expected


def test_the_layer_filter_gets_its_new_name() -> None:
    old = {"lora_layers": "a", "lora_layer_preset": "custom", "lora_layers_regex": True}
    new = {"layer_filter": "a", "layer_filter_preset": "custom", "layer_filter_regex": True}
    assert after(to_8, old) == new
    assert after(to_8, {**old, "layer_filter": "b"}) == {**new, "layer_filter": "b", "lora_layers": "a"}


# -- 8 to 11


@pytest.mark.parametrize("model_type", ["WUERSTCHEN_2", "STABLE_CASCADE_1"])
def test_a_prior_becomes_a_transformer_except_for_models_with_a_real_prior(model_type: str) -> None:
    prior = {"prior": {"train": False}}
    assert after(to_9, prior) == {**prior, "transformer": {"train": False}}
    assert after(to_9, {"prior": 5}) == {"prior": 5}
    assert after(to_9, {**prior, "transformer": {}}) == {**prior, "transformer": {}}
    assert after(to_9, {**prior, "model_type": model_type}) == {**prior, "model_type": model_type}


@pytest.mark.parametrize(
    ("model_type", "named"),
    [("STABLE_DIFFUSION_15", ["unet", "text_encoder"]), ("STABLE_DIFFUSION_21", ["unet", "text_encoder"]),
     ("STABLE_DIFFUSION_XL_10_BASE", ["unet", "text_encoder", "text_encoder_2"])],
)  # fmt: skip
def test_the_dtype_of_the_model_applies_to_parts_without_one_except_the_vae(model_type: str, named: list[str]) -> None:
    result = after(to_10, {"model_type": model_type, "weight_dtype": "FLOAT_16"})
    assert result == {"model_type": model_type, **{name: {"weight_dtype": "FLOAT_16"} for name in named}}


def test_the_dtype_of_the_model_leaves_a_part_with_its_own() -> None:
    given = {
        "weight_dtype": "FLOAT_16", "unet": {"weight_dtype": "BFLOAT_16"}, "text_encoder": {"weight_dtype": "NONE"},
        "vae": {"weight_dtype": "NONE"}, "prior": {}, "decoder": 5,
    }  # fmt: skip
    assert after(to_10, given) == {
        "unet": {"weight_dtype": "BFLOAT_16"}, "text_encoder": {"weight_dtype": "FLOAT_16"},
        "vae": {"weight_dtype": "FLOAT_16"}, "prior": {"weight_dtype": "FLOAT_16"}, "decoder": 5,
    }  # fmt: skip


def test_without_a_dtype_of_the_model_parts_are_unchanged() -> None:
    parts = {"unet": {"weight_dtype": "NONE"}, "vae": {}}
    assert after(to_10, parts) == parts
    notes: list[Problem] = []
    assert to_10({**parts, "weight_dtype": []}, notes) == parts
    assert [note.severity for note in notes] == ["warning"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gradient_checkpointing": "OFF"}, checkpointing(on=False)),
        ({"gradient_checkpointing": "ON", "layer_offload_fraction": 0.5}, checkpointing(on=True)),
        ({"gradient_checkpointing": "CPU_OFFLOADED"}, checkpointing(on=True, activations=True)),
        ({"gradient_checkpointing": "CPU_OFFLOADED", "enable_activation_offloading": False,
          "layer_offload_fraction": 0.5}, checkpointing(on=True, fraction=0.5)),
        ({"gradient_checkpointing": False}, checkpointing(on=False)),
        ({"layer_offload_fraction": 0.5}, checkpointing(on=True)),
        ({"gradient_checkpointing": None}, checkpointing(on=True)),
        ({"gradient_checkpointing": ["OFF"]}, checkpointing(on=True)),
    ],
)  # fmt: skip
def test_one_checkpointing_setting_becomes_one_for_each_part(given: Tree, expected: Tree) -> None:
    result = after(to_11, {**given, "decoder": {}, "text_encoder_2": 5})
    assert result == {
        "__version": 11, "unet": expected, "text_encoder": expected, "vae": expected, "decoder": expected,
        "text_encoder_2": 5,
    }  # fmt: skip


def test_a_parts_own_checkpointing_is_kept() -> None:
    result = after(to_11, {"gradient_checkpointing": "OFF", "unet": {"gradient_checkpointing": True}})
    assert [result[name]["gradient_checkpointing"] for name in ("unet", "vae")] == [True, False]


def test_another_family_gets_checkpointing_in_all_its_parts() -> None:
    result = after(to_11, {"gradient_checkpointing": "OFF", "model_type": "FLUX_DEV_1"})
    assert result["transformer"] == checkpointing(on=False)
    assert "unet" not in result


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [
        ("LORA", "SAFETENSORS", "LEGACY_LORA"),
        ("EMBEDDING", "SAFETENSORS", "SAFETENSORS"),
        ("FINE_TUNE", "SAFETENSORS", "LEGACY_SAFETENSORS"),
        ("FINE_TUNE_VAE", "SAFETENSORS", "LEGACY_SAFETENSORS"),
        ("FINE_TUNE", "CKPT", "LEGACY_SAFETENSORS"),
        ("LORA", "CKPT", "LEGACY_LORA"),
        ("EMBEDDING", "CKPT", "SAFETENSORS"),
        ("FINE_TUNE", "DIFFUSERS", "DIFFUSERS"),
        (["LORA"], "SAFETENSORS", "LEGACY_SAFETENSORS"),
        ("LORA", {}, {}),
    ],
)
def test_formats_get_specific_names(method: Any, given: Any, expected: Any) -> None:
    for version in (0, 10, 11):
        tree = {"__version": version, "training_method": method, "output_model_format": given}
        assert migrated(tree)["output_model_format"] == expected


def test_a_pickle_destination_gets_the_suffix_of_the_written_format() -> None:
    tree = {"output_model_format": "CKPT", "output_model_destination": "a.ckpt/b.ckpt"}
    assert migrated(tree)["output_model_destination"] == "a.ckpt/b.safetensors"
    assert migrated({**tree, "output_model_destination": 5})["output_model_destination"] == 5


# -- any JSON, any step

keys = st.sampled_from(sorted(KEYS | {"__version", "concepts", "validation", "optimizer_beta1"})) | st.text(max_size=5)
values = garbage | st.dictionaries(
    st.sampled_from(["weight_dtype", "train", "optimizer", "create", "enabled", "image", "gradient_checkpointing"]),
    garbage | st.sampled_from(["NONE", "FLOAT_16", True]),
    max_size=3,
)
any_trees = st.dictionaries(keys, values | st.sampled_from(["NONE", "CKPT", "SAFETENSORS", "LORA", True]), max_size=12)


def damaged(data: st.DataObject, tree: Tree) -> Tree:
    """A tree with any subset of its keys gone, others added, and any values in its place."""
    gone = data.draw(st.sets(st.sampled_from(sorted(tree)), max_size=len(tree)))
    rest = {k: v for k, v in tree.items() if k not in gone}
    return copy.deepcopy({**rest, **data.draw(any_trees)})


def assert_same(first: Tree, second: Tree) -> None:
    """Equality in which NaN equals NaN."""
    assert repr(first) == repr(second)


@pytest.mark.daily(1)
@every_step
@given(data=st.data(), name=st.sampled_from(sorted(FILES)))
def test_a_step_accepts_any_json(step: Step, data: st.DataObject, name: str) -> None:
    tree = damaged(data, FILES[name])
    before = copy.deepcopy(tree)
    once = step(tree, [])
    assert_same(tree, before)
    assert once is not tree
    kept = copy.deepcopy(once)
    again = step(once, [])
    assert again == once or repr(again) == repr(once), "a second run of the step changes nothing"
    assert_same(once, kept)


@given(data=st.data(), name=st.sampled_from(sorted(FILES)))
def test_the_chain_accepts_any_json(data: st.DataObject, name: str) -> None:
    tree = damaged(data, FILES[name])
    before = copy.deepcopy(tree)
    result = to_onetrainer_11(tree, [])
    assert_same(tree, before)
    assert result["__version"] == 11
    untouched = before.keys() - KEYS - {"__version", "concepts"}
    for key in (key for key in untouched if not key.startswith("optimizer_")):
        assert repr(result[key]) == repr(before[key]), key


# Two steps add keys that a newer file would contain, so they are only skipped if the version is certain.
ADDED_TO = {"noising_weight", "noising_bias", "prior"}


@given(data=st.data(), name=st.sampled_from(sorted(name for name in FILES if "v11" not in name)))
def test_where_the_chain_starts_changes_nothing(data: st.DataObject, name: str) -> None:
    """Steps that are skipped because of a file's version would have changed nothing."""
    file = FILES[name]
    kept = data.draw(st.sets(st.sampled_from(sorted(file.keys() - {"__version"} - ADDED_TO))))
    tree = {key: file[key] for key in kept}
    whole: Tree = tree
    for step in ONETRAINER_STEPS:
        whole = step(whole, [])
    assert with_old_defaults(whole, era_of(tree), []) == migrated(tree)


@pytest.mark.parametrize("tree", [{"noising_weight": 2.0, "noising_bias": 0.7}, {"prior": {"train": False}}])
def test_a_certain_version_keeps_a_step_from_a_newer_file(tree: Tree) -> None:
    assert migrated(tree).keys() & {"timestep_distribution", "transformer"}
    newer = {**tree, "lokr_dim": 16}
    assert migrated(newer) == {**newer, "__version": 11}


# -- up to a config


@pytest.mark.parametrize(
    ("method", "checkpointed", "offloads"),
    [("ON", "block", False), ("OFF", "off", False), ("CPU_OFFLOADED", "block", True), (True, "block", False),
     (False, "off", False)],
)  # fmt: skip
def test_checkpointing_of_version_10_applies_to_all_parts(method: Any, checkpointed: str, offloads: bool) -> None:
    for version in ({"__version": 10}, {}, {"__version": 11}):  # written without a bump in July 2026
        config = decode({"gradient_checkpointing": method, "unet": {"train": True}, **version}).config
        for name in ("unet", "text_encoder"):  # also in a sparse file without the part
            part = config.part(name)
            assert (part.checkpointing, part.offload_activations) == (checkpointed, offloads), (version, name)


def test_the_format_of_an_older_onetrainer_preset_is_converted() -> None:
    result = decode({"training_method": "LORA", "output_model_format": "SAFETENSORS"})
    assert result.config.output.format == "kohya"
    assert not [p for p in result.problems if p.severity != "info"]
