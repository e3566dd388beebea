"""A loaded Sana: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.parts.chat_model import ChatModel
from modules.families.parts.chat_text import ChatReader
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.sana.text import as_read


@dataclass(eq=False)
class Sana(ChatModel[TokenConditioning]):
    """A transformer, a Gemma 2, an autoencoder; implements `ModelFamily`.

    `reader` reads prompts after the instruction, `plain` negative prompts and the empty one without it.
    """

    plain: ChatReader

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TokenConditioning:
        """Return the states of prompts. None depends on the others, so `padded_like` changes nothing."""
        return self._read([(self.reader if as_read(prompt) else self.plain, prompt) for prompt in prompts])

    def encode_guided(self, negative: str, prompt: str) -> TokenConditioning:
        """Return the states of a negative prompt, without the instruction, and of a prompt."""
        return TokenConditioning.join([self._read([(self.plain, negative)]), self.encode_prompts([prompt])])

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

    def _read(self, read_by: Sequence[tuple[ChatReader, str]]) -> TokenConditioning:
        forward = self._forward("text_encoder")
        return TokenConditioning.of([reader.encode(forward, [as_read(prompt)])[0] for reader, prompt in read_by])
