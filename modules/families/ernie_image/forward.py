"""A loaded ERNIE-Image: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.diffusion.latents import channels_to_patches, patches_to_channels
from modules.families.parts.chat_model import ChatModel
from modules.families.parts.conditioning import TokenConditioning
from modules.system.devices import tensor_on


@dataclass(eq=False)
class ErnieImage(ChatModel[TokenConditioning]):
    """A transformer, the language model of a Ministral 3, a VAE; implements `ModelFamily`."""

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity (B, 32, H, W). The transformer puts an image behind its text, and masks the padding."""
        text, dtype = self._text(conditioning), self._input_dtype()
        output = self._forward("transformer")(
            hidden_states=patches_to_channels(noisy_BCHW.to(dtype)),
            timestep=self.process.time_input(timesteps_B),
            text_bth=text.states_BLD.to(dtype),
            text_lens=tensor_on(list(text.lengths), noisy_BCHW.device),
            return_dict=False,
        )
        return self.process.velocity(channels_to_patches(output[0]))
