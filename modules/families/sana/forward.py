"""A loaded Sana: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.parts.conditioning import visible_tokens
from modules.families.parts.gemma import InstructedModel
from modules.families.sana.text import as_read


@dataclass(eq=False)
class Sana(InstructedModel):
    """A transformer, a Gemma 2, an autoencoder; implements `ModelFamily`."""

    def as_read(self, prompt: str) -> str:
        """Return a prompt in lower case, without blanks at its ends."""
        return as_read(prompt)

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity (B, 32, H, W). Equally long prompts need no mask."""
        text, dtype = self._text(conditioning), self._input_dtype()
        output = self._forward("transformer")(
            hidden_states=noisy_BCHW.to(dtype),
            encoder_hidden_states=text.states_BLD.to(dtype),
            timestep=self.process.time_input(timesteps_B) * self.denoiser.config.timestep_scale,
            encoder_attention_mask=visible_tokens(text.lengths, noisy_BCHW.device),
            return_dict=False,
        )
        return self.process.velocity(output[0])
