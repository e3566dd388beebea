"""A loaded PixArt: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.diffusion.process import DDPMProcess
from modules.families.parts.conditioning import visible_tokens
from modules.families.parts.t5_model import T5Model
from modules.families.pixart.settings import has_size_conditions


@dataclass(eq=False)
class PixArt(T5Model[DDPMProcess]):
    """A transformer, a T5-XXL, a VAE; implements `FamilyWithWords`."""

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: all but the VAE's are reached."""
        return part != "vae"

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the predicted noise (B, 4, H, W).

        The published models also predict its variance, in as many channels behind it: no loss reaches these, and no
        sampler reads them (as in diffusers' pipelines and the authors' training script for diffusers).
        """
        text, dtype = self._text(conditioning), self._input_dtype()
        output = self._forward("transformer")(
            hidden_states=noisy_BCHW.to(dtype),
            timestep=timesteps_B,
            encoder_hidden_states=text.states_BLD.to(dtype),
            encoder_attention_mask=visible_tokens(text.lengths, noisy_BCHW.device),
            added_cond_kwargs=self._sizes(noisy_BCHW),
            return_dict=False,
        )
        noise_BCHW: torch.Tensor = output[0][:, : noisy_BCHW.shape[1]]
        return noise_BCHW

    def _sizes(self, noisy_BCHW: torch.Tensor) -> dict[str, torch.Tensor | None]:
        """Return the size conditions: height and width in pixels, as they are sampled, and their ratio."""
        if not has_size_conditions(self.denoiser.config):
            return {"resolution": None, "aspect_ratio": None}
        sides_B2 = noisy_BCHW.new_ones(len(noisy_BCHW), 2, dtype=torch.float32)
        height, width = map(self.spec.latents.px, noisy_BCHW.shape[-2:])
        sides_B2[:, 0], sides_B2[:, 1] = height, width
        return {"resolution": sides_B2, "aspect_ratio": sides_B2[:, :1] / sides_B2[:, 1:]}
