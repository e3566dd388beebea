"""The standard method: the model learns to predict the noise in noisy images (Ho et al. 2020)."""

from typing import Literal

from modules.objectives.spec import MethodSpec, MethodStart
from modules.settings.field import Section


class Denoise(Section):
    """The standard method: predict the noise in noisy images (Ho et al. 2020)."""

    name: Literal["denoise"] = "denoise"


DENOISE = MethodSpec(
    "denoise",
    "Denoising",
    "Learns to remove noise from your images: the standard method.",
    Denoise,
    "trainer.methods.denoise:build",
    has_denoising_loss=lambda settings: True,
    trains_embeddings=True,
    is_shareable=lambda settings: True,
    is_recordable=True,
    sources={"images": MethodStart("A person, an object or a style needs 10 to 100 of them.", is_usual=True)},
)
