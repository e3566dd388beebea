"""A loaded Z-Image: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.parts.chat_text import ChatReader
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.flow_model import FlowModel


@dataclass(eq=False)
class ZImage(FlowModel[TokenConditioning]):
    """A transformer, a Qwen3, a VAE; implements `ModelFamily`."""

    text_class = TokenConditioning

    reader: ChatReader

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: the transformer's are reached, the text is not trained."""
        return part == self.spec.denoiser.name

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TokenConditioning:
        """Return the states of prompts. The transformer pads them itself, so `padded_like` changes nothing."""
        return TokenConditioning.of(self.reader.encode(self._forward("text_encoder"), prompts))

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

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return self.reader.identity()

    def count_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without the template."""
        return self.reader.tokenizer.count(prompt)
