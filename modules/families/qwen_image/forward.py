"""A loaded Qwen-Image: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.parts.chat_model import ChatModel
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.packing import pack, unpack
from modules.families.qwen_image.settings import unused_layers
from modules.families.qwen_image.spec import PACKED
from modules.families.qwen_image.text import EMPTY


@dataclass(eq=False)
class QwenImage(ChatModel[TokenConditioning]):
    """A transformer, the language model of a Qwen2.5-VL, a VAE; implements `ModelFamily`."""

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: the transformer's are reached, but for the end of the text's
        stream; the text is not trained.
        """
        unused = unused_layers(int(self.denoiser.config.num_layers))
        return super().reaches(part, name) and not f"{name}.".startswith(unused)

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TokenConditioning:
        """Return the states of prompts, of which an empty one is read as a space."""
        return super().encode_prompts([prompt or EMPTY for prompt in prompts], padded_like)

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity (B, 16, H, W)."""
        text, dtype = self._text(conditioning), self._input_dtype()
        height, width = noisy_BCHW.shape[-2:]
        output = self._forward("transformer")(
            hidden_states=pack(noisy_BCHW.to(dtype)),
            timestep=self.process.time_input(timesteps_B),
            encoder_hidden_states=text.states_BLD.to(dtype),
            encoder_hidden_states_mask=visible_tokens(text.lengths, noisy_BCHW.device),
            img_shapes=[[(1, height // PACKED, width // PACKED)]] * len(noisy_BCHW),
            return_dict=False,
        )
        return self.process.velocity(unpack(output[0], height, width))

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return f"{super().text_identity()}|{EMPTY}"
