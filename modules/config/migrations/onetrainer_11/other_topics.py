"""OneTrainer's data, embeddings, evaluation and devices."""

from __future__ import annotations

from modules.config.migrations.darkroom_cloud import note_of_cloud
from modules.config.migrations.onetrainer_11.tables import DTYPES, every, family_of, move_all, period, resolution_of
from modules.config.migrations.tree_moves import (
    Notes,
    Tree,
    choose,
    move_or,
    number,
    pop_object,
    pop_switch,
    put,
    put_back,
)
from modules.settings.shared_types import sides_of
from modules.system.problem import DEFAULT_USED, Problem, quote

# OneTrainer's resolution, cache and mask settings.

_SIZE_STEPS_PX = {"sd": 8, "stable_cascade": 128, "wuerstchen": 128}
_USUAL_SIZE_STEP_PX = 64  # of all other families
_UNMASKED_PROBABILITY = 0.1  # OneTrainer's default
_OF_DATA = {
    "aspect_ratio_bucketing": "data.aspect_buckets",
    "latent_caching": "data.latent_cache",
    "dataloader_threads": "data.loader_threads",
    "masked_training": "masks.enabled",
    "unmasked_weight": "masks.unmasked_weight",
    "normalize_masked_area_loss": "masks.normalize_area_loss",
    "masked_prior_preservation_weight": "masks.prior_preservation_weight",
    "custom_conditioning_image": "masks.custom_conditioning_image",
}


def data_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the settings of the training images."""
    if "resolution" in rest:
        _resolution(rest.pop("resolution"), result, notes)
    move_all(rest, result, _OF_DATA)
    _unmasked_probability(rest, result, notes)
    put(result, "data.bucket_step_px", _SIZE_STEPS_PX.get(family_of(result), _USUAL_SIZE_STEP_PX))
    put(result, "data.bucket_aspect_ratios", "fixed")
    put(result, "data.max_aspect", 4.0)


def _unmasked_probability(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the unmasked probability, which OneTrainer only uses for inpainting models: for others it was 0."""
    given = rest.pop("unmasked_probability", _UNMASKED_PROBABILITY)
    if result["model"].get("variant") == "inpainting":
        put(result, "masks.unmasked_probability", given, source="unmasked_probability")
    elif result.get("masks", {}).get("enabled") is True and given not in (0, _UNMASKED_PROBABILITY):
        message = (
            f"OneTrainer uses unmasked_probability only for inpainting models, so {quote(given)} had no effect. It is "
            "0 now: masks always apply."
        )
        notes.append(Problem("masks.unmasked_probability", message, "info"))


def _resolution(given: object, result: Tree, notes: Notes) -> None:
    resolutions, is_whole = resolution_of(given)
    if len(resolutions) == 1 and isinstance(resolutions[0], str):
        width_px, height_px = sides_of(resolutions[0])
        put(result, "data.fixed_width_px", width_px, source="resolution")
        put(result, "data.fixed_height_px", height_px, source="resolution")
    elif resolutions:
        put(result, "data.resolution_px", resolutions, source="resolution")
    if not is_whole:
        shorter = ", ".join(r if isinstance(r, str) else f"{r:g}" for r in resolutions)
        used = f"{shorter} is used" if resolutions else DEFAULT_USED
        message = f"resolution = {quote(given)} is not valid; {used}."
        notes.append(Problem("data.resolution_px", message, "warning"))


# OneTrainer's embeddings: the one that is trained alone, and additional ones.

_OF_EMBEDDINGS = {
    "uuid": "uuid",
    "model_name": "file",
    "placeholder": "placeholder",
    "train": "train",
    "token_count": "token_count",
    "initial_embedding_text": "initial_text",
    "is_output_embedding": "is_output",
}


def embeddings_of(rest: Tree, result: Tree, notes: Notes, steps_per_update: int) -> None:
    """Convert the embeddings. OneTrainer's single embedding is used only with the method EMBEDDING."""
    embeddings: list[Tree] = []
    if result.get("training", {}).get("trains") == "embedding":
        given = pop_object(rest, "embedding", notes, "embeddings.words")
        embeddings.append(_embedding(given, notes, "embeddings.words.0", steps_per_update))
        put_back(rest, "embedding", given)
    additional = rest.pop("additional_embeddings", None)
    if additional is not None and not isinstance(additional, list):
        message = f"{quote(additional)} is not a list of embeddings; it is left out."
        notes.append(Problem("embeddings.words", message, "warning"))
    leftovers: list[Tree] = []
    for item in additional if isinstance(additional, list) else []:
        if not isinstance(item, dict):
            message = f"{quote(item)} is not an embedding; it is left out."
            notes.append(Problem("embeddings.words", message, "warning"))
            continue
        left = {k: v for k, v in item.items() if not k.startswith("__")}
        embeddings.append(_embedding(left, notes, f"embeddings.words.{len(embeddings)}", steps_per_update))
        leftovers.append(left)
    if any(leftovers):
        rest["additional_embeddings"] = leftovers
    if embeddings:
        put(result, "embeddings.words", embeddings)
    move_all(
        rest,
        result,
        {"embedding_learning_rate": "embeddings.learning_rate", "preserve_embedding_norm": "embeddings.preserve_norm"},
    )
    choose(rest, result, "embedding_weight_dtype", "embeddings.dtype", DTYPES, notes)


def _embedding(given: Tree, notes: Notes, where: str, steps_per_update: int) -> Tree:
    word: Tree = {}
    move_all(given, word, _OF_EMBEDDINGS)
    word["stop_after"] = every(
        given, "stop_training_after", steps_per_update, (0, "NEVER"), notes, f"{where}.stop_after"
    )
    return word


# OneTrainer's validation, samples, backups and saves.

_PERIODS = {
    "sample_after": ("sampling.every", (10, "MINUTE")),
    "backup_after": ("backup.every", (30, "MINUTE")),
    "save_every": ("backup.save_every", (0, "NEVER")),
    "validate_after": ("validation.every", (1, "EPOCH")),
}
_SKIPS = {
    "sample_skip_first": ("sampling.skip_first", "sample_after_unit", "MINUTE"),
    "save_skip_first": ("backup.save_skip_first", "save_every_unit", "NEVER"),
}
_OF_EVALUATION = {
    "samples_to_tensorboard": "sampling.to_tensorboard",
    "non_ema_sampling": "sampling.without_average_too",
    "backup_before_save": "backup.at_end",
    "save_filename_prefix": "backup.save_prefix",
    "concept_file_name": "concepts_file",
    "sample_definition_file_name": "sampling.prompts_file",
}


def evaluation_of(rest: Tree, result: Tree, notes: Notes, steps_per_update: int) -> None:
    """Convert the settings of validation, samples, backups and saves."""
    for source, (path, unit_key, default_unit) in _SKIPS.items():  # in the unit of the period they skip
        _skip(rest, source, path, rest.get(unit_key, default_unit), steps_per_update, result, notes)
    for source, (path, default) in _PERIODS.items():
        put(result, path, every(rest, source, steps_per_update, default, notes, path))
    if result["sampling"]["every"]["unit"] == "never":  # then OneTrainer generates no samples at all
        put(result, "sampling.at_start", False)
        put(result, "sampling.at_end", False)
    if not pop_switch(rest, "validation", notes, "validation.every"):
        put(result, "validation.every", {"unit": "never"})
    choose(rest, result, "sample_image_format", "sampling.image_format", {"PNG": "png", "JPG": "jpg"}, notes)
    move_or(rest, result, "rolling_backup_count", "backup.keep", 3)
    if not pop_switch(rest, "rolling_backup", notes, "backup.keep"):
        put(result, "backup.keep", 0)
    for name in ("concept_file_name", "sample_definition_file_name"):
        if not isinstance(rest.get(name), str):
            rest.pop(name, None)
    move_all(rest, result, _OF_EVALUATION)


def _skip(rest: Tree, source: str, path: str, unit: object, steps_per_update: int, result: Tree, notes: Notes) -> None:
    given = rest.pop(source, 0)
    n = number(given)
    if n is None:
        notes.append(Problem(path, f"{source} = {quote(given)} is not a number; nothing is skipped.", "warning"))
    elif n > 0 and unit in ("EPOCH", "STEP", "SECOND", "MINUTE", "HOUR"):
        put(result, path, period(n, str(unit), steps_per_update))


# OneTrainer's multi-GPU settings. Its cloud settings are kept unchanged: a machine is not part of a config.

_MULTI_GPU = {
    "multi_gpu": "multi_gpu.enabled",
    "device_indexes": "multi_gpu.device_indexes",
    "fused_gradient_reduce": "multi_gpu.fused_reduce",
    "async_gradient_reduce": "multi_gpu.async_reduce",
    "async_gradient_reduce_buffer": "multi_gpu.async_reduce_buffer_mb",
}
_REDUCE = {
    "FLOAT_32": "float32",
    "FLOAT_32_STOCHASTIC": "float32_stochastic",
    "WEIGHT_DTYPE": "weights",
    "WEIGHT_DTYPE_STOCHASTIC": "weights_stochastic",
}


def devices_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the multi-GPU settings; cloud training that is on is reported."""
    if rest.get("multi_gpu") is True:
        notes.append(
            Problem(
                "training.batch_size",
                "In OneTrainer the batch size counts for each GPU; here it counts for all GPUs together.",
                "warning",
                advice="Multiply it by the number of GPUs to keep the steps as they were.",
            )
        )
    move_all(rest, result, _MULTI_GPU)
    choose(rest, result, "gradient_reduce_precision", "multi_gpu.reduce_precision", _REDUCE, notes)
    cloud = rest.get("cloud")
    if isinstance(cloud, dict) and cloud.get("enabled") is True:  # otherwise it is reported with the other kept keys
        notes.append(note_of_cloud("onetrainer.cloud", cloud))
