"""The settings that a LoRA file carries: ours, OneTrainer's, or kohya's `ss_*` keys (formats: sd-scripts' metadata)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.codec import Loaded, decode
from modules.config.imports.kohya_settings import tree_of_kohya
from modules.config.imports.kohya_values import Args, said
from modules.config.schema import Config
from modules.formats.headers import UnreadableFileError, read_header
from modules.system.problem import Problem

_PREFIX = "ss_"
# What training found and not what it was told: hashes, dates, losses, counts.
_RESULTS_NAMES = """
    session_id training_started_at training_finished_at sd_scripts_commit_hash steps epoch num_train_images
    num_reg_images num_batches_per_epoch new_sd_model_hash sd_model_hash new_vae_hash vae_hash tag_frequency
    reg_dataset_dirs bucket_info total_batch_size num_validation_images output_name_hash dynamo_backend
    color_aug flip_aug random_crop shuffle_caption keep_tokens face_crop_aug_range lowram bucket_no_upscale
    cache_latents_hash vae_name
"""
_RESULTS = frozenset(_RESULTS_NAMES.split())
# Kept of those where they say something that a run would do otherwise.
_TELLING = ("color_aug", "flip_aug", "random_crop", "shuffle_caption", "keep_tokens")


def config_of_lora(path: Path) -> Loaded:
    """Return a config with the settings that a LoRA file was trained with, as far as it tells them.

    Only the header is read. Never raises on content; a file that tells nothing gives the defaults and an error.
    """
    try:
        metadata = read_header(path).metadata
    except UnreadableFileError as error:
        return Loaded(Config(), [Problem("", f"{error.message} {error.advice}".strip())])
    for key, name in (("darkroom_config", "Darkroom"), ("ot_config", "OneTrainer")):
        if key in metadata:
            loaded = decode(_json(metadata[key]))
            note = Problem("", f"These are the settings that {path.name} carries; {name} wrote them.", "info")
            return Loaded(loaded.config, [note, *loaded.problems], loaded.was_migrated)
    args = kohya_args(metadata)
    if not args:
        message = f"{path.name} does not tell how it was trained: it carries no settings."
        return Loaded(Config(), [Problem("", message, advice="Load a config, or choose a preset.")])
    notes = [Problem("", f"These are the settings that {path.name} was trained with, as far as it tells them.", "info")]
    tree = tree_of_kohya(args, notes)
    if not tree.get("concepts"):
        notes.append(Problem("concepts", "Which images it was trained on is not in the file.", "info"))
    loaded = decode(tree)
    return Loaded(loaded.config, [*notes, *loaded.problems], was_migrated=True)


def kohya_args(metadata: Mapping[str, str]) -> Args:
    """Return kohya's settings among a file's metadata, under the names they have in its configs."""
    args: Args = {}
    for key, text in metadata.items():
        name = key.removeprefix(_PREFIX)
        if key.startswith(_PREFIX) and said(text) and (name not in _RESULTS or _is_telling(name, text)):
            args[name] = _json(text) if text[:1] in "[{" else text
    args.pop("datasets", None)  # as `dataset_dirs`, at greater length
    return args


def _is_telling(name: str, text: str) -> bool:
    return name in _TELLING and text not in ("False", "0")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
