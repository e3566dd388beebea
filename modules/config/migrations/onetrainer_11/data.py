"""OneTrainer's resolution, cache and mask settings."""

from __future__ import annotations

from modules.config.migrations.onetrainer_11.tables import family_of, move_all, resolution_of
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.settings.shared_types import sides_of
from modules.system.problem import DEFAULT_USED, Problem, shown

_SIZE_STEPS_PX = {"sd": 8, "sdxl": 64}
_UNMASKED_PROBABILITY = 0.1  # OneTrainer's default
_PLAIN = {
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
    move_all(rest, result, _PLAIN)
    _unmasked_probability(rest, result, notes)
    put(result, "data.bucket_step_px", _SIZE_STEPS_PX[family_of(result)])
    put(result, "data.bucket_aspect_ratios", "fixed")
    put(result, "data.max_aspect", 4.0)


def _unmasked_probability(rest: Tree, result: Tree, notes: Notes) -> None:
    """Convert the unmasked probability, which OneTrainer only uses for inpainting models: for others it was 0."""
    given = rest.pop("unmasked_probability", _UNMASKED_PROBABILITY)
    if result["model"].get("variant") == "inpainting":
        put(result, "masks.unmasked_probability", given)
    elif result.get("masks", {}).get("enabled") is True and given not in (0, _UNMASKED_PROBABILITY):
        message = (
            f"OneTrainer uses the unmasked probability only for inpainting models, so {shown(given)} had no effect. It "
            "is 0 now: masks always apply."
        )
        notes.append(Problem("masks.unmasked_probability", message, "info"))


def _resolution(given: object, result: Tree, notes: Notes) -> None:
    resolutions, is_whole = resolution_of(given)
    if len(resolutions) == 1 and isinstance(resolutions[0], str):
        width_px, height_px = sides_of(resolutions[0])
        put(result, "data.fixed_width_px", width_px)
        put(result, "data.fixed_height_px", height_px)
    elif resolutions:
        put(result, "data.resolution_px", resolutions)
    if not is_whole:
        shorter = ", ".join(r if isinstance(r, str) else f"{r:g}" for r in resolutions)
        used = f"{shorter} is used" if resolutions else DEFAULT_USED
        message = f"{shown(given)} is not a valid resolution; {used}."
        notes.append(Problem("data.resolution_px", message, "warning"))
