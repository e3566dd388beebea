"""Reconstruction: how a VAE is trained (Kingma and Welling 2014; Rombach et al. 2022, section 3.1). Its own target's
method: it is not among those to choose from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from annotated_types import Ge, Le

from modules.objectives.spec import MethodGuide, MethodSpec
from modules.settings.field import Section, Setting, When
from modules.system.problem import Problem

_VAE = When("training.trains", ("vae",))
_GROUP = "VAE"


class Reconstruction(Section):
    """How a VAE is trained: which half of it, and the terms of its loss."""

    decoder_only: Annotated[
        bool,
        Setting(
            "Decoder only",
            "Trains only the decoder, so that the latents stay the same and every model and LoRA can use the new VAE. "
            "Training the encoder too changes the latents: models that were trained with the old ones no longer fit.",
            group=_GROUP,
            applies_when=_VAE,
        ),
    ] = True
    mse_strength: Annotated[
        float,
        Ge(0),
        Le(1000),
        Setting("MSE strength", "The weight of the squared error of the pixels.", group=_GROUP, applies_when=_VAE),
    ] = 1.0
    mae_strength: Annotated[
        float,
        Ge(0),
        Le(1000),
        Setting(
            "MAE strength",
            "The weight of the absolute error of the pixels. Sharper than the squared error alone.",
            group=_GROUP,
            applies_when=_VAE,
        ),
    ] = 0.0
    kl_strength: Annotated[
        float,
        Ge(0),
        Le(1000),
        Setting(
            "KL strength",
            "The weight of the KL divergence of the latents from a standard normal distribution, as a mean over their "
            "elements. It keeps the latents in their range when the encoder is trained.",
            group=_GROUP,
            level="advanced",
            applies_when=When("decoder_only", (False,)),
        ),
    ] = 1e-6


def _problems(settings: Reconstruction) -> Iterator[Problem]:
    """Yield an error without any error of the pixels: nothing would hold the images."""
    if not settings.mse_strength and not settings.mae_strength:
        yield Problem(
            "training.vae.mse_strength",
            "The VAE has no loss: MSE strength and MAE strength are both 0.",
            advice="Set one of them, for example the MSE strength to 1.",
        )


SPEC = MethodSpec(
    "reconstruction",
    "Reconstruction",
    "Reconstruction trains a VAE to decode images as they were before it encoded them.",
    Reconstruction,
    "trainer.methods.reconstruction:build",
    trains_on="pixels",
    adds_noise=lambda settings: False,
    problems=_problems,
    guide=MethodGuide(
        needs=("Images. Captions are not used, and neither the UNet nor a text encoder is loaded.",),
        watch={"psnr": "Rises slowly: half a decibel is visible, three are a lot."},
    ),
)
