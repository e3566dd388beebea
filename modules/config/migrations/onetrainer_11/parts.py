"""OneTrainer's parts of the model, and their quantization."""

from __future__ import annotations

from modules.config.migrations.onetrainer_11.tables import (
    WEIGHT_DTYPES,
    choose_layers,
    every,
    family_of,
    move_all,
)
from modules.config.migrations.tree_moves import Notes, Tree, choose, move, pop_object, put, put_back
from modules.families.registry import FAMILIES

_PARTS = ("unet", "text_encoder", "text_encoder_2", "vae")
_PLAIN = ("train", "learning_rate", "train_embedding", "offload_fraction")


def parts_of(rest: Tree, result: Tree, notes: Notes, steps_per_update: int) -> None:
    """Convert the settings of single parts, also of parts in the file that the family does not have."""
    own = [part.name for part in FAMILIES[family_of(result)].parts]
    for name in _PARTS:
        if name in own or name in rest:
            given = pop_object(rest, name, notes, f"parts.{name}")
            if name == "vae" and result.get("training", {}).get("trains") == "vae":
                given.pop("train", None)  # FINE_TUNE_VAE trains it whatever this is: the VAE has no such switch there
            put(result, f"parts.{name}", _part(name, given, result, notes, steps_per_update))
            put_back(rest, name, given)
    _second_caption_dropout(result)
    _quantization(rest, result, notes)


def _part(name: str, given: Tree, result: Tree, notes: Notes, steps_per_update: int) -> Tree:
    where = f"parts.{name}"
    part: Tree = {}
    move_all(given, part, {key: key for key in _PLAIN})
    choose(given, part, "weight_dtype", "dtype", WEIGHT_DTYPES, notes, where=f"{where}.dtype")
    part["checkpointing"] = "block" if given.pop("gradient_checkpointing", True) is not False else "off"
    part["offload_activations"] = given.pop("activation_offloading", False)
    default = (30, "EPOCH") if name.startswith("text_encoder") else (0, "NEVER")
    part["stop_after"] = every(given, "stop_training_after", steps_per_update, default, notes, f"{where}.stop_after")
    if name == "text_encoder":
        move(given, result, "dropout_probability", "data.caption_dropout")
    elif name == "text_encoder_2":
        move(given, result, "dropout_probability", "data.caption_dropout_2")
    elif name == "vae":
        move(given, result, "model_name", "model.vae_file")
    return part


def _second_caption_dropout(result: Tree) -> None:
    """Theirs is set for each text encoder; ours for the second only if it differs."""
    data = result["data"]
    first = data.get("caption_dropout", 0.0)
    second = data.pop("caption_dropout_2", 0.0 if family_of(result) == "sdxl" else first)
    if second != first and (family_of(result) == "sdxl" or second):
        data["caption_dropout_2"] = second


def _quantization(rest: Tree, result: Tree, notes: Notes) -> None:
    given = pop_object(rest, "quantization", notes, "quantization")
    settings: Tree = {}
    choose_layers(given, settings, ("layers", "custom_layers", "layers_regex"), notes, where="quantization.layers")
    svd_dtypes = {**WEIGHT_DTYPES, "NONE": "none"}
    choose(given, settings, "svd_dtype", "svd_dtype", svd_dtypes, notes, where="quantization.svd_dtype")
    move(given, settings, "svd_rank", "svd_rank")
    if given.get("cache_dir") is None:
        given.pop("cache_dir", None)
    move(given, settings, "cache_dir", "cache_dir")
    if settings:
        put(result, "quantization", settings)
    put_back(rest, "quantization", given)
