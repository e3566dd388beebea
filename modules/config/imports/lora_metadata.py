"""The settings in the metadata of a LoRA file: ours, OneTrainer's, or kohya's `ss_*` keys (source: sd-scripts)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.codec import LoadedConfig, decode
from modules.config.imports.kohya_settings import tree_of_kohya
from modules.config.imports.kohya_values import Args, is_set
from modules.config.schema import Config
from modules.formats.headers import UnreadableFileError, read_header
from modules.system.problem import Problem

_PREFIX = "ss_"
# Results of training instead of settings: hashes, dates, losses, counts.
_RESULTS_NAMES = """
    session_id training_started_at training_finished_at sd_scripts_commit_hash steps epoch num_train_images
    num_reg_images num_batches_per_epoch new_sd_model_hash sd_model_hash new_vae_hash vae_hash tag_frequency
    reg_dataset_dirs bucket_info total_batch_size num_validation_images output_name_hash dynamo_backend
    color_aug flip_aug random_crop shuffle_caption keep_tokens face_crop_aug_range lowram bucket_no_upscale
    cache_latents_hash vae_name
"""
_RESULTS = frozenset(_RESULTS_NAMES.split())
# Names among these that are kept if they are set, since they change the training.
_SETTINGS_AMONG_RESULTS = ("color_aug", "flip_aug", "random_crop", "shuffle_caption", "keep_tokens")


def config_of_lora(path: Path) -> LoadedConfig:
    """Return a config with the settings a LoRA file was trained with, as far as its metadata contain them.

    Only the header is read. Never raises on content; a file without settings gives the defaults and an error.
    """
    try:
        metadata = read_header(path).metadata
    except UnreadableFileError as error:
        return LoadedConfig(Config(), [Problem("", str(error))])
    for key, name in (("darkroom_config", "Darkroom"), ("ot_config", "OneTrainer")):
        if key in metadata:
            loaded = decode(_json(metadata[key]))
            note = Problem("", f"These settings were read from the metadata of {path.name}, written by {name}.", "info")
            return LoadedConfig(loaded.config, [note, *loaded.problems], loaded.was_migrated)
    args = kohya_args(metadata)
    if "ai-toolkit" in metadata.get("software", ""):  # its only `ss_` keys are the names of the model and the file
        message = f"{path.name} was written by ai-toolkit, whose files contain no training settings."
        advice = "Load the config.yaml of its run, which ai-toolkit writes into the same folder."
        return LoadedConfig(Config(), [Problem("", message, advice=advice)])
    if not args:
        message = f"{path.name} contains no training settings in its metadata."
        return LoadedConfig(Config(), [Problem("", message, advice="Load a config, or choose a preset.")])
    notes = [Problem("", f"These settings were read from the metadata of {path.name}; others may be missing.", "info")]
    tree = tree_of_kohya(args, notes)
    if not tree.get("concepts"):
        notes.append(Problem("concepts", "The file does not contain the training images or their folders.", "info"))
    loaded = decode(tree)
    return LoadedConfig(loaded.config, [*notes, *loaded.problems], was_migrated=True)


def kohya_args(metadata: Mapping[str, str]) -> Args:
    """Return kohya's settings among a file's metadata, under the names they have in its configs."""
    args: Args = {}
    for key, text in metadata.items():
        name = key.removeprefix(_PREFIX)
        if key.startswith(_PREFIX) and is_set(text) and (name not in _RESULTS or _is_set_result(name, text)):
            args[name] = _json(text) if text[:1] in "[{" else text
    args.pop("datasets", None)  # the same as `dataset_dirs`, in more detail
    return args


def _is_set_result(name: str, text: str) -> bool:
    return name in _SETTINGS_AMONG_RESULTS and text not in ("False", "0")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
