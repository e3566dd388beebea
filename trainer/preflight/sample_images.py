"""The files of samples that inpaint: that they are images, of the sample's aspect ratio."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.variant_facts import inpaints
from modules.data.images import opened, upright
from modules.system.paths import from_root
from modules.system.problem import Problem

_ASPECT_TOLERANCE = 0.02  # rounding of small sizes


def problems_of_sample_images(config: Config) -> Iterator[Problem]:
    """Yield the files of enabled samples that are no images, and a warning for those that are stretched."""
    if not inpaints(config):
        return
    for index, prompt in enumerate(config.sampling.prompts):
        if not prompt.enabled or not prompt.inpainting:
            continue
        for name in ("base_image", "mask_image"):
            if not (file := getattr(prompt, name).strip()):
                continue  # reported by the rules of the settings
            path, label = f"sampling.prompts.{index}.{name}", name.replace("_", " ")
            try:
                with opened(from_root(file)) as raw:
                    width_px, height_px = upright(raw).size
            except OSError as error:
                message = f"The {label} of sample {index + 1} cannot be read: {error}."
                yield Problem(path, message, advice="Choose another image, or switch Inpaint off.")
                continue
            if abs(width_px * prompt.height_px / (height_px * prompt.width_px) - 1) > _ASPECT_TOLERANCE:
                yield Problem(
                    path,
                    f"The {label} of sample {index + 1} is stretched from {width_px} × {height_px} to "
                    f"{prompt.width_px} × {prompt.height_px} px.",
                    "warning",
                    "Give the sample the aspect ratio of its image.",
                )
