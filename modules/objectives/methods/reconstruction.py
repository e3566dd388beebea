"""Reconstruction: how a VAE is trained (Kingma and Welling 2014; Rombach et al. 2022, section 3.1). It belongs to a
training target and cannot be chosen as a method.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from modules.objectives.spec import MethodGuide, MethodSpec
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import UpTo1000
from modules.system.problem import Problem

_VAE = When("training.trains", ("vae",))
_PERCEPTUAL = When("perceptual_strength", is_set=True)
_GROUP = "VAE"


class Reconstruction(Section):
    """How a VAE is trained: which half of it, and the terms of its loss."""

    group: ClassVar[str] = _GROUP

    decoder_only: Annotated[
        bool,
        Setting(
            "Decoder only",
            "Trains only the decoder, so that the latents stay the same and every model and LoRA can use the new VAE. "
            "Training the encoder too changes the latents: models that were trained with the old ones no longer fit.",
            applies_when=_VAE,
        ),
    ] = True
    mse_strength: Annotated[
        UpTo1000, Setting("MSE strength", "The weight of the squared error of the pixels.", applies_when=_VAE)
    ] = 1.0
    mae_strength: Annotated[
        UpTo1000,
        Setting(
            "MAE strength",
            "The weight of the absolute error of the pixels. Sharper than the squared error alone.",
            applies_when=_VAE,
        ),
    ] = 0.0
    perceptual_strength: Annotated[
        UpTo1000,
        Setting(
            "Perceptual strength",
            "The weight of the perceptual distance LPIPS, which compares the features that a VGG16 sees in the images: "
            "sharper textures than errors of the pixels alone, at a lower PSNR. 0.1 to 1 is usual.",
            applies_when=_VAE,
        ),
    ] = 0.0
    vgg_file: Annotated[
        str,
        advanced_setting(
            "VGG16 file",
            "The VGG16 of the perceptual distance: a file of torchvision's or timm's weights, or a Hugging Face "
            "repository with a model.safetensors.",
            path_kind="file",
            empty_means="the published one, a download of 0.6 GB",
            applies_when=_PERCEPTUAL,
        ),
    ] = ""
    lpips_file: Annotated[
        str,
        advanced_setting(
            "LPIPS file",
            "The weights of VGG16's features in the perceptual distance: the weights of LPIPS for VGG16, version 0.1.",
            path_kind="file",
            empty_means="the published ones",
            applies_when=_PERCEPTUAL,
        ),
    ] = ""
    kl_strength: Annotated[
        UpTo1000,
        advanced_setting(
            "KL strength",
            "The weight of the KL divergence of the latents from a standard normal distribution, as a mean over their "
            "elements. It keeps the latents in their range when the encoder is trained.",
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


RECONSTRUCTION = MethodSpec(
    "reconstruction",
    "Reconstruction",
    "Reconstruction trains a VAE to decode images as they were before it encoded them.",
    Reconstruction,
    "trainer.methods.reconstruction:build",
    trains_on="pixels",
    is_shareable=lambda settings: True,
    adds_noise=lambda settings: False,
    problems=_problems,
    guide=MethodGuide(
        needs=("Images. Captions are not used, and neither the denoiser nor a text encoder is loaded.",),
        watch={
            "psnr": "Rises slowly: half a decibel is visible, three are a lot.",
            "lpips": "Falls, if the perceptual strength is not 0. The PSNR may fall a little with it.",
        },
    ),
)
