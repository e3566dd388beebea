"""Denoising: the standard method (Ho et al. 2020)."""

from __future__ import annotations

from typing import Literal

from modules.objectives.spec import MethodSpec
from modules.settings.field import Section


class Denoise(Section):
    """The standard method: predict the noise in noisy images (Ho et al. 2020)."""

    name: Literal["denoise"] = "denoise"


SPEC = MethodSpec(
    "denoise",
    "Denoising",
    "Denoising is the standard method: the model learns to remove noise from your images.",
    Denoise,
    "trainer.methods.denoise:build",
    has_denoising_loss=lambda settings: True,
    trains_embeddings=True,
    is_shareable=lambda settings: True,
)
