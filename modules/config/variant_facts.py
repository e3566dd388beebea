"""Facts about the model variant of a config: what its denoiser gets besides the prompt. Does not import torch.

A run of the VAE uses no denoiser: its model may be of any variant, and gets nothing of it.
"""

from __future__ import annotations

from modules.config.schema import Config
from modules.config.sections.training import method_in_use
from modules.data.inputs import ModelInput, inputs_named
from modules.families.spec import BASE_VARIANT
from modules.settings.edit import choose_variant


def with_kind(config: Config, family: str, variant: str) -> Config:
    """Return the config for a model of a family and a variant. Another family has its remembered settings."""
    config, _ = choose_variant(config, "model.family", family)
    return config.model_copy(update={"model": config.model.model_copy(update={"variant": variant})})


def is_variant(config: Config) -> bool:
    """Return whether the model is conditioned on an image besides the prompt."""
    return _has_denoiser(config) and config.model.variant != BASE_VARIANT


def inputs_of(config: Config) -> tuple[ModelInput, ...]:
    """Return the further inputs that the model gets with each image, in their order."""
    if not _has_denoiser(config):
        return ()
    return inputs_named(config.family.inputs.get(config.model.variant, ()))


def inpaints(config: Config) -> bool:
    """Return whether the model gets an inpainting mask and a conditioning image with each image."""
    return any(i.delivery == "mask" for i in inputs_of(config))


def reads_depth(config: Config) -> bool:
    """Return whether the model gets a depth map with each image."""
    return any(i.name == "depth" for i in inputs_of(config))


def weighs_areas(config: Config) -> bool:
    """Return whether masks weigh the loss.

    Not that of an inpainting model, which learns the whole image from the rest of it: its masks say what it inpaints,
    as in OneTrainer.
    """
    return config.masks.enabled and not inpaints(config)


def _has_denoiser(config: Config) -> bool:
    return method_in_use(config.training)[0].trains_on == "latents"
