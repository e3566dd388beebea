"""A loaded Krea 2: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.parts.chat_model import ChatModel
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.packing import image_ids, pack, unpack


@dataclass(eq=False)
class Krea2(ChatModel[TokenConditioning]):
    """A transformer, the language model of a Qwen3-VL, a VAE; implements `ModelFamily`.

    The states of a prompt are (L, K D), those of K layers of the text encoder one after the other.
    """

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity (B, 16, H, W). The positions of text are 0; equally long prompts need no mask."""
        text, dtype = self._text(conditioning), self._input_dtype()
        packed_BLC, ids_L3 = pack(noisy_BCHW.to(dtype)), image_ids(noisy_BCHW)
        output = self._forward("transformer")(
            hidden_states=packed_BLC,
            encoder_hidden_states=text.states_BLD.to(dtype).unflatten(-1, (len(self.reader.layers), -1)),
            timestep=self.process.time_input(timesteps_B),
            position_ids=torch.cat([ids_L3.new_zeros(text.states_BLD.shape[1], 3), ids_L3]),
            encoder_attention_mask=visible_tokens(text.lengths, packed_BLC.device),
            return_dict=False,
        )
        return self.process.velocity(unpack(output[0], *noisy_BCHW.shape[-2:]))

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return f"{super().text_identity()}|{self.reader.layers}"
