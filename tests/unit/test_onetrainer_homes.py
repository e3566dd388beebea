"""Every OneTrainer key for SD 1.x, 2.x and SDXL is converted: set to another value, it changes a field.

The fixture lists every key with a value other than OneTrainer's default. The few without a counterpart are
listed here, each with its reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import LoadedConfig, decode, load_file, save_file
from modules.config.migrations.onetrainer_11.model import MODEL_TYPES
from modules.config.migrations.onetrainer_keys import FIRST_VERSION, LAST_VERSION, NEWEST
from modules.config.schema import Config
from tests.builders.for_each import for_each

NOTHING_KEPT: dict[str, Any] = {"onetrainer": {}}
KEYS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "fixtures" / "onetrainer_keys.json").read_text())
CLOUD = KEYS["cloud"]
ALL = [(place, key) for place, keys in KEYS.items() for key in keys if place != "cloud"]

# Other keys that a key needs to have an effect.
BESIDE: dict[str, dict[str, Any]] = {
    "validate_after": {"validation": True},
    "validate_after_unit": {"validation": True},
    "custom_learning_rate_scheduler": {"learning_rate_scheduler": "CUSTOM"},
    "scheduler_params": {"learning_rate_scheduler": "CUSTOM"},
    "learning_rate_cycles": {"learning_rate_scheduler": "COSINE_WITH_RESTARTS"},
    "learning_rate_min_factor": {"learning_rate_scheduler": "COSINE"},
    "rolling_backup_count": {"rolling_backup": True},
    "save_every": {"save_every_unit": "EPOCH"},
    "save_every_unit": {"save_every": 5},
    "save_skip_first": {"save_every": 5, "save_every_unit": "EPOCH"},
    "layer_filter": {"layer_filter_preset": "custom"},
    "layer_filter_regex": {"layer_filter_preset": "custom"},
    "stop_training_after": {"stop_training_after_unit": "EPOCH"},
    "stop_training_after_unit": {"stop_training_after": 5},
    "lokr_dora_on_output": {"lokr_weight_decompose": True},
    "resolution_override": {"enable_resolution_override": True},
    "unmasked_probability": {"model_type": "STABLE_DIFFUSION_15_INPAINTING"},  # for others it has no effect
}
# Keys without a counterpart, and why.
MEANINGLESS = {
    ("top", "clear_cache_before_training"): "the cache is content-addressed: it is never stale",
    ("top", "continue_last_backup"): "OneTrainer's backups cannot be resumed; reported in a note",
    ("top", "secrets"): "kept in a file of its own; reported in a note",
    ("top", "debug_mode"): "no images of batches are dumped; reported in a note",
    ("top", "debug_dir"): "the folder of the debug dump",
    ("concept", "concept_stats"): "statistics, not settings",
}
# Keys of 1.12 in the facts of OneTrainer: they belong to other model types.
OTHER_KINDS = {
    "prior", "transformer", "unconditional_transformer", "text_encoder_3", "text_encoder_3_layer_skip",
    "text_encoder_4", "text_encoder_4_layer_skip", "effnet_encoder", "decoder", "decoder_text_encoder",
    "decoder_vqgan", "frames", "vb_loss_strength", "dynamic_timestep_shifting", "text_encoder_sequence_length",
    "text_encoder_2_sequence_length", "async_offloading", "sample_video_format", "sample_audio_format",
}  # fmt: skip

# Parts that OneTrainer has no settings for: its Cascade and Wuerstchen have an image encoder and a decoder instead.
WITHOUT_PART = {("anima", "text_conditioner"), ("stable_cascade", "vae"), ("wuerstchen", "vae")}


def kept_apart(result: LoadedConfig) -> Config:
    """Return a config without what is kept of its file."""
    return result.config.model_copy(update={"unknown": {}})


def placed(place: str, keys: dict[str, Any]) -> LoadedConfig:
    """Load a LoRA of SDXL with some keys at a place of the file."""
    tree: dict[str, Any] = {"__version": 11, "training_method": "LORA", "model_type": "STABLE_DIFFUSION_XL_10_BASE"}
    match place.split("."):
        case ["top"]:
            tree |= keys
        case ["concept"]:
            tree["concepts"] = [keys]
        case ["concept", inner]:
            tree["concepts"] = [{inner: keys}]
        case ["sample"]:
            tree["samples"] = [keys]
        case ["embedding"]:
            tree |= {"training_method": "EMBEDDING", "embedding": keys}
        case _:
            tree[place] = keys
    return decode(tree)


@for_each(ALL, named=".".join)
def test_a_key_has_a_counterpart(where: tuple[str, str]) -> None:
    place, key = where
    beside = BESIDE.get(key, {})
    if (place, key) == ("top", "model_type"):
        beside = {"model_type": "STABLE_DIFFUSION_15"}
    without, result = placed(place, beside), placed(place, {**beside, key: KEYS[place][key]})
    said = [p for p in result.problems if p.severity in ("warning", "error")]
    assert [str(p) for p in said if key != "multi_gpu" or p.path != "training.batch_size"] == []  # counted differently
    assert result.config.unknown == without.config.unknown == NOTHING_KEPT
    if (place, key) in MEANINGLESS:
        assert result.config == without.config
    else:
        assert result.config != without.config


@for_each(ALL, named=".".join)
def test_a_fine_tune_keeps_every_key_too(where: tuple[str, str]) -> None:
    """Keys also apply to other methods: none of them is lost there or reported as unknown."""
    place, key = where
    if place in ("embedding", "concept", "concept.image", "concept.text", "sample"):
        return
    keys = {"training_method": "FINE_TUNE", **BESIDE.get(key, {}), key: KEYS[place][key]}
    if key == "output_model_format":
        keys[key] = "DIFFUSERS"
    result = decode(keys if place == "top" else {"training_method": "FINE_TUNE", place: {key: KEYS[place][key]}})
    left = result.config.unknown.get("onetrainer", {})
    assert left.keys() <= {"custom_learning_rate_scheduler", "scheduler_params"}
    assert key not in left


def test_the_list_of_keys_is_complete() -> None:
    """Against the keys by which files are known: a key that is added there must be listed here."""
    todays = {key for key in FIRST_VERSION if LAST_VERSION.get(key, NEWEST) >= NEWEST}
    nested = KEYS.keys() - {"top", "concept", "concept.image", "concept.text", "sample"}
    listed = KEYS["top"].keys() | nested
    assert todays - listed == OTHER_KINDS


def test_the_cloud_is_kept_as_it_is_and_reported(tmp_path: Path) -> None:
    """A machine is not part of a config: its settings have no effect here, and none is lost."""
    for cloud in (CLOUD, {**CLOUD, "enabled": False}, {"__version": 0, "telepathy": 1}, 5):
        result = placed("top", {"cloud": cloud})
        assert result.config.unknown == {"onetrainer": {"cloud": cloud}}
        assert kept_apart(result) == kept_apart(placed("top", {}))
        assert any("cloud" in p.message for p in result.problems)
        save_file(result.config, tmp_path / "saved.json")
        again = load_file(tmp_path / "saved.json")
        assert (again.config, again.problems) == (result.config, []), "reported once, and kept"


def test_cloud_training_that_is_on_gives_a_warning() -> None:
    on, off = (placed("top", {"cloud": {**CLOUD, "enabled": enabled}}).problems for enabled in (True, False))
    assert [(p.path, p.severity) for p in on] == [("onetrainer.cloud", "warning"), ("", "info")]
    assert "trains on this machine" in on[0].message
    assert "remote import" in on[0].advice
    assert [(p.path, p.severity) for p in off] == [("", "info")]


@for_each(sorted(OTHER_KINDS))
def test_keys_of_other_model_types_are_kept_and_reported(key: str) -> None:
    result = placed("top", {key: "some value"})
    assert result.config.unknown == {"onetrainer": {key: "some value"}}
    assert [p.severity for p in result.problems] == ["info"]


@for_each(sorted(MODEL_TYPES))
def test_the_parts_of_every_model_type_are_converted(model_type: str) -> None:
    tree = {"__version": 11, "training_method": "LORA", "model_type": model_type}
    family, variant = MODEL_TYPES[model_type]
    loaded = decode(tree).config
    assert (loaded.family.name, loaded.model.variant, loaded.unknown) == (family, variant, NOTHING_KEPT)
    for part in loaded.family.parts:
        configs = [decode({**tree, part.name: {"weight_dtype": t}}).config for t in ("FLOAT_32", "BFLOAT_16")]
        has_home = [c.part(part.name).dtype for c in configs] == ["float32", "bfloat16"]
        keeps_nothing = all(c.unknown == NOTHING_KEPT for c in configs)
        assert has_home == keeps_nothing == ((family, part.name) not in WITHOUT_PART), part.name


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("unet", "model_name", "other"),
        ("unet", "dropout_probability", 0.5),  # captions are dropped for text encoders
        ("unet", "guidance_scale", 2.0),
        ("vae", "include", False),
        ("sample", "frames", 9),
        ("concept.image", "resolution_override", "640"),  # is not enabled
    ],
)
def test_keys_without_effect_inside_objects_are_kept_there(place: str, key: str, value: Any) -> None:
    result = placed(place, {key: value})
    assert json.dumps(result.config.unknown["onetrainer"]).count(key) == 1
    assert kept_apart(result) == kept_apart(placed(place, {}))


def test_the_report_names_what_of_a_used_object_has_no_effect() -> None:
    """Not the object itself, most of which is used."""
    result = placed("top", {"concepts": [{"path": "images", "telepathy": 1}], "unet": {"train": True, "colour": "red"}})
    assert any(p.message.endswith("unchanged: concepts (telepathy), unet (colour).") for p in result.problems)
