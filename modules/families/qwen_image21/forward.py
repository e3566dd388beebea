"""A loaded Qwen-Image 2.1: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.parts.chat_model import ChatModel
from modules.families.parts.conditioning import TokenConditioning, visible_tokens


@dataclass(eq=False)
class QwenImage21(ChatModel[TokenConditioning]):
    """A transformer, the language model of a Qwen3-VL, a VAE; implements `ModelFamily`."""

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity (B, 64, H, W)."""
        text, dtype = self._text(conditioning), self._input_dtype()
        output = self._forward("transformer")(
            hidden_states=noisy_BCHW.to(dtype),
            encoder_hidden_states=text.states_BLD.to(dtype),
            timestep=self.process.time_input(timesteps_B),
            encoder_hidden_states_mask=visible_tokens(text.lengths, noisy_BCHW.device),
            return_dict=False,
        )
        return self.process.velocity(output[0])
