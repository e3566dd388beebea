"""The settings that a run does not use because of its training target and method, so that forms hide them.

Conditions on single settings are declared with the settings (`applies_when`); here are facts of the method's record.
"""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import learns_from, method_of, settings_of_method, trains_on_pixels
from modules.config.schema import Config
from modules.config.variant_facts import inpaints
from modules.settings.field import Section

_INPAINTING = "inpainting"  # a family without such models is refused with it
_OF_LATENTS = (
    "data.latent_cache",
    "data.text_cache",
    "data.cache_location",
    "data.cache_dtype",
    "data.verify_cache",
    "general.only_cache",
)
_OF_CAPTIONS = (
    "data.caption_dropout",
    "data.caption_dropout_2",
    "output.trigger_words",
    "sampling.prompts_file",
)
_OF_DENOISING = (
    "quantization",
    "training.method",
    "validation.num_timesteps",
)
_OF_TRAINED_PARTS = ("train", "learning_rate", "stop_after")


def why_unused(config: Section, path: str) -> str:
    """Return why a run does not use the setting at a path, as "training the VAE"; empty if it may use it."""
    if not isinstance(config, Config):
        return ""  # the settings of a job
    return next((why for prefix, why in _unused(config) if path == prefix or path.startswith(f"{prefix}.")), "")


def _unused(config: Config) -> Iterator[tuple[str, str]]:
    method, settings = method_of(config), settings_of_method(config)
    if not method.adds_noise(settings):
        yield "training.noise", f"{method.label} adds no noise of its own"
    if not method.has_denoising_loss(settings):
        yield "training.loss", f"{method.label} has a loss of its own"
    if learns_from(config) == "prompts":
        yield "masks", f"{method.label} trains on images that it samples, without masks"
    if not inpaints(config) and config.model.variant != _INPAINTING:
        yield "masks.custom_conditioning_image", "the model is not an inpainting model"
    if trains_on_pixels(config):
        yield from _unused_on_pixels(config)
    if config.training.trains == "embedding":
        for part in config.family_parts:
            yield from ((f"parts.{part.name}.{name}", "only embeddings are trained") for name in _OF_TRAINED_PARTS)


def _unused_on_pixels(config: Config) -> Iterator[tuple[str, str]]:
    """Yield what a run of the VAE does not use: it reads images, and no other part of the model."""
    why = "the VAE is trained on images, without captions, latents or noise"
    vae = config.family.names_of("vae")
    yield from ((f"parts.{part.name}", why) for part in config.family_parts if part.name not in vae)
    family = [f"model.family.{name}" for name in type(config.model.family).model_fields if name != "name"]
    yield from ((path, why) for path in (*family, *_OF_LATENTS, *_OF_CAPTIONS, *_OF_DENOISING))
