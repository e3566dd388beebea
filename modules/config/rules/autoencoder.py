"""What does not go together with training the VAE."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import trains_on_pixels
from modules.config.schema import Config
from modules.config.words import trained_parts
from modules.families.registry import FAMILIES
from modules.system.problem import Problem

_DENOISE = "denoise"


def autoencoder(config: Config) -> Iterator[Problem]:
    """Yield an error for each setting that a run of the VAE cannot have."""
    if not trains_on_pixels(config):
        return
    family = FAMILIES[config.model.family]
    if not family.names_of("vae"):
        yield Problem(
            "training.trains", f"{family.label} has no VAE to train.", advice="Choose another training target."
        )
    if config.training.method.name != _DENOISE:
        yield Problem(
            "training.method",
            "A VAE is trained by reconstructing images. The method set here trains the UNet.",
            advice="Set the method to Denoising: with the training target VAE it is not used.",
        )
    yield from _dtypes(config)
    yield from _masks_and_concepts(config)


def _dtypes(config: Config) -> Iterator[Problem]:
    family = FAMILIES[config.model.family]
    if config.training.precision == "float16" and family.vae_overflows:
        yield Problem(
            "training.precision",
            f"The VAE of {family.label} overflows in float16, so it cannot be trained in it.",
            advice="Set the precision to bfloat16 or float32.",
        )
    for part in trained_parts(config):
        settings = config.part(part.name)
        if settings.dtype == "float16" and family.vae_overflows:
            yield Problem(
                f"parts.{part.name}.dtype",
                f"The VAE of {family.label} overflows in float16, so it cannot be trained with float16 weights.",
                advice="Set the weight dtype to float32 or bfloat16. The result can still be written in float16.",
            )
        if settings.offload_fraction > 0:
            yield Problem(
                f"parts.{part.name}.offload_fraction",
                "The layers of a VAE that is trained cannot be offloaded.",
                advice="Set the layer offload fraction to 0 and switch on gradient checkpointing.",
            )
    if config.output.dtype == "float8":
        yield Problem(
            "output.dtype",
            "A VAE cannot be saved in float8: its images would be visibly coarse.",
            advice="Set the output dtype to float32, bfloat16 or float16.",
        )


def _masks_and_concepts(config: Config) -> Iterator[Problem]:
    if config.masks.enabled and config.masks.prior_preservation_weight > 0:
        yield Problem(
            "masks.prior_preservation_weight",
            "Masked prior preservation needs predictions of the UNet, which a run of the VAE does not make.",
            advice="Set it to 0.",
        )
    for index, concept in enumerate(config.concepts):
        if concept.enabled and concept.kind == "prior_prediction":
            yield Problem(
                f"concepts.{index}.kind",
                "A concept of the type Prior prediction needs predictions of the UNet, which a run of the VAE does not "
                "make.",
                advice="Set its concept type to Training or Regularization, or switch it off.",
            )
