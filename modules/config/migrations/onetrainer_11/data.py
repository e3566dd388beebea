"""OneTrainer's resolution, cache and mask settings."""

from __future__ import annotations

from modules.config.migrations.onetrainer_11.tables import family_of, move_all, resolution_of
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.system.problem import DEFAULT_USED, Problem, shown

_SIZE_STEPS_PX = {"sd": 8, "sdxl": 64}
_PLAIN = {
    "aspect_ratio_bucketing": "data.aspect_buckets",
    "latent_caching": "data.latent_cache",
    "dataloader_threads": "data.loader_threads",
    "masked_training": "masks.enabled",
    "unmasked_probability": "masks.unmasked_probability",
    "unmasked_weight": "masks.unmasked_weight",
    "normalize_masked_area_loss": "masks.normalize_area_loss",
    "masked_prior_preservation_weight": "masks.prior_preservation_weight",
    "custom_conditioning_image": "masks.custom_conditioning_image",
}


def data_of(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the settings of the training images."""
    if "resolution" in rest:
        _resolution(rest.pop("resolution"), result, notes)
    move_all(rest, result, _PLAIN)
    put(result, "data.bucket_step_px", _SIZE_STEPS_PX[family_of(result)])
    put(result, "data.max_aspect", 4.0)


def _resolution(given: object, result: Tree, notes: Notes) -> None:
    sides, fixed, is_whole = resolution_of(given)
    if sides:
        put(result, "data.resolution_px", sides)
    elif fixed:
        put(result, "data.fixed_width_px", fixed[0])
        put(result, "data.fixed_height_px", fixed[1])
    if not is_whole:
        used = f"{', '.join(f'{s:g}' for s in sides)} is used" if sides else DEFAULT_USED
        if fixed and not sides:
            used = f"{fixed[0]}x{fixed[1]} is used"
        message = f"{shown(given)} is not a valid resolution; {used}."
        notes.append(Problem("data.resolution_px", message, "warning"))
