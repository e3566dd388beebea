"""What the model variants cannot be trained with, and settings that only they use."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import learns_from, method_of
from modules.config.schema import Config
from modules.config.variant_facts import inpaints, is_variant, reads_depth
from modules.families.registry import FAMILIES
from modules.families.spec import BASE_VARIANT
from modules.system.problem import Problem


def model_variant(config: Config) -> Iterator[Problem]:
    """Yield problems with a variant that the family does not have, and with methods that need the base model."""
    spec, name = FAMILIES[config.model.family], config.model.variant
    if name not in (BASE_VARIANT, *spec.variants, *spec.inputs):
        yield Problem(
            "model.variant",
            f"{spec.label} has no {name} models.",
            advice="Choose another model variant, or another model family.",
        )
    method, what = method_of(config), "depth map" if reads_depth(config) else "mask and no conditioning image"
    if is_variant(config) and (method.samples_images or learns_from(config) != "images"):
        yield Problem(
            "training.method",
            f"{method.label} cannot train {name} models: its images have no {what}.",
            advice="Choose Denoising, or the base model.",
        )
    output = config.output
    if reads_depth(config) and config.training.trains == "full" and output.model_format == "single_file":
        yield Problem(
            "output.model_format",
            "A single file of a depth model also contains its depth estimator, which a run does not load.",
            advice="Save the model as a diffusers folder.",
        )


def masks_of_variant(config: Config) -> Iterator[Problem]:
    """Yield notes about settings of masks that have no effect with the model variant."""
    masks = config.masks
    if masks.enabled and inpaints(config):
        yield Problem(
            "masks.enabled",
            "Masked training has no effect on an inpainting model: its masks are what it inpaints, and its loss counts "
            "everywhere.",
            "info",
        )


def sample_images(config: Config) -> Iterator[Problem]:
    """Yield problems with samples that inpaint."""
    for index, prompt in enumerate(config.sampling.prompts):
        path = f"sampling.prompts.{index}"
        if not prompt.enabled or not prompt.inpainting:
            continue
        if not inpaints(config):
            yield Problem(
                f"{path}.inpainting",
                f"Sample {index + 1} inpaints, but the model is not an inpainting model: it is sampled from the prompt "
                "alone.",
                "warning",
                "Switch Inpaint off, or choose an inpainting model.",
            )
            continue
        for name, label in (("base_image", "base image"), ("mask_image", "mask image")):
            if not getattr(prompt, name).strip():
                yield Problem(
                    f"{path}.{name}",
                    f"Sample {index + 1} inpaints, but has no {label}.",
                    advice=f"Choose its {label}, or switch Inpaint off.",
                )
