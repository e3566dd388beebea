"""The shared base of the Stable Diffusion models: a UNet that denoises a VAE's latents, conditioned by CLIP.

Rombach et al. 2022, "High-Resolution Image Synthesis with Latent Diffusion Models". A family built on it defines how
prompts are encoded and how the UNet receives the conditioning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import torch

from modules.diffusion.process import DDPMProcess
from modules.families.lora_naming import LoraNaming
from modules.families.parts.clip_text import TextTower
from modules.families.parts.diffusion_settings import LatentDiffusionSettings
from modules.families.parts.files import ModelFiles
from modules.families.parts.latent_model import LatentModel
from modules.families.parts.noise_process import process_of, scheduler_with
from modules.families.spec import FamilySpec


@dataclass(eq=False)
class LatentDiffusion(LatentModel[DDPMProcess]):
    """A loaded model, whose text encoders are CLIPs."""

    towers: Mapping[str, TextTower] = field(default_factory=dict, kw_only=True)

    @classmethod
    def of(
        cls,
        spec: FamilySpec,
        files: ModelFiles,
        settings: LatentDiffusionSettings,
        towers: Mapping[str, TextTower],
        naming_of: Callable[[str], LoraNaming],
    ) -> Self:
        """Return the model of files, which were read from any form; `naming_of` a prediction type names its layers.

        Raises DarkroomError for a noise process that is not supported.
        """
        scheduler = scheduler_with(
            files.scheduler, prediction=settings.prediction_type, zero_terminal_snr=settings.zero_terminal_snr
        )
        process = process_of(scheduler, name=files.name)
        naming = naming_of(process.prediction_type)
        return cls(spec, files.parts, process, scheduler, naming, towers=towers, folder=files.folder)

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: it reaches the UNet, and the text layers in use.

        The exception in the UNet is the guidance embedding of distilled models, which is never used.
        """
        if part in self.towers:
            return self.towers[part].reaches(name)
        return part == self.spec.denoiser.name and not name.endswith("time_embedding.cond_proj")

    def _unet_input(
        self, noisy_BCHW: torch.Tensor, inputs: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the UNet's input: the noisy latents and the further channels of a variant behind them."""
        if not inputs:
            return noisy_BCHW.to(dtype)
        names = self.spec.inputs[self.variant]
        return torch.cat([noisy_BCHW.to(dtype), *(inputs[name].to(dtype) for name in names)], dim=1)
