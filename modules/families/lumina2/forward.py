"""A loaded Lumina-Image 2.0: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.lumina2.positions import Positions
from modules.families.parts.conditioning import visible_tokens
from modules.families.parts.gemma import InstructedModel


@dataclass(eq=False)
class Lumina2(InstructedModel):
    """A transformer, a Gemma 2, a VAE; implements `ModelFamily`."""

    positions: Positions

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity (B, 16, H, W)."""
        text, dtype = self._text(conditioning), self._input_dtype()
        visible = visible_tokens(text.lengths, noisy_BCHW.device)
        if visible is None:
            visible = torch.ones(text.states_BLD.shape[:2], dtype=torch.bool, device=noisy_BCHW.device)
        with self.positions.of(text.lengths):
            output = self._forward("transformer")(
                hidden_states=noisy_BCHW.to(dtype),
                timestep=self.process.time_input(timesteps_B),
                encoder_hidden_states=text.states_BLD.to(dtype),
                encoder_attention_mask=visible,
                return_dict=False,
            )
        return self.process.velocity(output[0])
