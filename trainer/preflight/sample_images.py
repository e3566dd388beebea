"""The files of samples of model variants: that they are images, of the sample's aspect ratio."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.sections.evaluation import REFERENCE_IMAGES, SamplePrompt
from modules.config.usage import inpaints, reads_depth, reads_references
from modules.data.images import open_image, upright
from modules.data.references import ASPECT_TOLERANCE
from modules.families.spec import VARIANT_LABELS
from modules.system.file_errors import plain_reason
from modules.system.paths import from_root
from modules.system.problem import Problem

_LABELS = {
    "base_image": "base image",
    "mask_image": "mask image",
    "depth_image": "depth map",
    "reference_image": "reference image",
    "reference_image_2": "second reference image",
    "reference_image_3": "third reference image",
}


def problems_of_sample_images(config: Config) -> Iterator[Problem]:
    """Yield the files of enabled samples that cannot be read, and a warning for those that are stretched."""
    for index, prompt in enumerate(config.sampling.prompts):
        if prompt.enabled and config.family.seen_with_captions is not None and not prompt.reference_images:
            yield Problem(
                f"sampling.prompts.{index}.reference_image",
                f"Sample {index + 1} has no reference image, which a model of the variant "
                f"{VARIANT_LABELS[config.model.variant]} edits: it shows what the prompt alone gives.",
                "warning",
                "Choose the image that it edits.",
            )
        for name in _image_fields(config, prompt) if prompt.enabled else ():
            if not (file := getattr(prompt, name).strip()):
                continue  # reported by the rules of the settings
            path, label = f"sampling.prompts.{index}.{name}", _LABELS[name]
            try:
                with open_image(from_root(file)) as raw:
                    width_px, height_px = upright(raw).size
            except OSError as error:
                message = f"The {label} of sample {index + 1} cannot be read: {plain_reason(error, names_file=True)}."
                yield Problem(path, message, advice="Choose another image.")
                continue
            if name in REFERENCE_IMAGES:
                continue  # one of another aspect ratio keeps it
            if abs(width_px * prompt.height_px / (height_px * prompt.width_px) - 1) > ASPECT_TOLERANCE:
                yield Problem(
                    path,
                    f"The {label} of sample {index + 1} is stretched from {width_px} × {height_px} to "
                    f"{prompt.width_px} × {prompt.height_px} px.",
                    "warning",
                    "Give the sample the aspect ratio of its image.",
                )


def _image_fields(config: Config, prompt: SamplePrompt) -> tuple[str, ...]:
    """Return the names of the fields whose images a sample uses."""
    if reads_depth(config):
        return ("depth_image",)
    if reads_references(config):
        return REFERENCE_IMAGES
    return ("base_image", "mask_image") if inpaints(config) and prompt.inpainting else ()
