"""Images and samples that are larger than the positions of the model's denoiser reach."""

from __future__ import annotations

import math
from collections.abc import Iterator

from modules.config.sampled_model import config_of_samples
from modules.config.schema import Config
from modules.config.usage import uses_denoiser
from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.system.problem import Problem, count
from trainer.preflight.denoiser_config import denoiser_config
from trainer.preflight.passes import MALFORMED_CONFIG


def problems_of_sample_sides(config: Config) -> Iterator[Problem]:
    """Yield an error for each enabled sample with a side for which the model has no positions."""
    sampled = config_of_samples(config)
    longest_px = longest_side_px(sampled)
    for index, prompt in enumerate(config.sampling.prompts):
        side_px = max(prompt.width_px, prompt.height_px)
        if longest_px is not None and prompt.enabled and side_px > longest_px:
            yield Problem(
                f"sampling.prompts.{index}.{'width' if side_px == prompt.width_px else 'height'}_px",
                f"Sample {index + 1} is {prompt.width_px} × {prompt.height_px} px. {_limit(sampled, longest_px)}",
                advice=f"Set its width and its height to {longest_px} px or less.",
            )


def problems_of_image_sides(config: Config, training: Dataset, validation: Dataset) -> Iterator[Problem]:
    """Yield an error if images are trained or validated at a size for which the model has no positions."""
    longest_px = longest_side_px(config)
    if longest_px is None:
        return
    largest_of_each = [max(sizes, key=_side_px) for data in (training, validation) for sizes in data.buckets]
    too_large = [size for size in largest_of_each if _side_px(size) > longest_px]
    if not too_large:
        return
    largest = max(too_large, key=_side_px)
    lower_px = int(longest_px * math.sqrt(min(largest.sides_px) / max(largest.sides_px)))  # with the same aspect ratio
    yield Problem(
        "data.resolution_px",
        f"{count(len(too_large), 'image')} would be trained at up to {largest.width_px} × {largest.height_px} px. "
        f"{_limit(config, longest_px)}",
        advice=f"Lower the resolution, to about {lower_px:,} px, or the max aspect ratio.",
    )


def longest_side_px(config: Config) -> int | None:
    """Return the longest side of an image for which the denoiser has positions; None without a limit, or unknown."""
    spec = config.family
    longest_side = spec.denoiser.model.longest_side
    if longest_side is None or not uses_denoiser(config):
        return None
    try:
        return spec.latents.px(longest_side(denoiser_config(config)))
    except (*MALFORMED_CONFIG, ArithmeticError):  # no config is known, or the check of the model reports it
        return None


def _side_px(size: Size) -> int:
    return max(size.sides_px)


def _limit(config: Config, longest_px: int) -> str:
    return f"This {config.family.label} model has positions for sides up to {longest_px:,} px."
