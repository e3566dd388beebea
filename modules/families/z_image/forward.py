"""A loaded Z-Image: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.parts.chat_model import ChatModel
from modules.families.parts.conditioning import TokenConditioning


@dataclass(eq=False)
class ZImage(ChatModel[TokenConditioning]):
    """A transformer, a Qwen3, a VAE; implements `ModelFamily`. The transformer pads the states of prompts itself."""

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity (B, 16, H, W): the transformer reads lists of latents with one frame, and of states."""
        dtype = self._input_dtype()
        images = list(noisy_BCHW.to(dtype).unsqueeze(2))
        states = [states_LD.to(dtype) for states_LD in self._text(conditioning).split()]
        outputs = self._forward("transformer")(images, self.process.time_input(timesteps_B), states, return_dict=False)
        return self.process.velocity(torch.stack(outputs[0]).squeeze(2))
