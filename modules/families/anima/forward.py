"""A loaded Anima: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.anima.settings import CONDITIONER
from modules.families.anima.text import PromptTokenizers, condition, qwen_states
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.text_model import FlowModel
from modules.system.devices import tensor_on


@dataclass(eq=False)
class Anima(FlowModel[TokenConditioning]):
    """A transformer, a Qwen3, a text conditioner, a VAE; implements `ModelFamily`."""

    text_class = TokenConditioning

    tokenizers: PromptTokenizers

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: the transformer's and the conditioner's are reached."""
        return part in (self.spec.denoiser.name, CONDITIONER)

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TokenConditioning:
        """Return the conditioner's text of prompts; their padding is zeros, so that `padded_like` changes nothing."""
        encoder, forward = self.modules["text_encoder"], self._forward("text_encoder")
        ids = [self.tokenizers.ids(prompt) for prompt in prompts]
        states = [qwen_states(encoder, forward, qwen_ids) for qwen_ids, _ in ids]
        conditioner, run = self.modules[CONDITIONER], self._forward(CONDITIONER)
        return TokenConditioning.of(condition(conditioner, run, states, [t5_ids for _, t5_ids in ids]))

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity (B, 16, H, W): the transformer reads the latents as a video of one frame."""
        text, dtype = self._text(conditioning), self._input_dtype()
        least = int(self.modules[CONDITIONER].config.min_sequence_length)
        height, width = map(self.spec.latents.px, noisy_BCHW.shape[-2:])
        output = self._forward("transformer")(
            hidden_states=noisy_BCHW.to(dtype).unsqueeze(2),
            timestep=self.process.time_input(timesteps_B),
            encoder_hidden_states=padded(text.states_BLD.to(dtype), least),
            attention_mask=text_mask(text.lengths, least, noisy_BCHW.device),
            padding_mask=noisy_BCHW.new_zeros(1, 1, height, width, dtype=dtype),
            return_dict=False,
        )
        return self.process.velocity(output[0].squeeze(2))

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return self.tokenizers.identity()

    def count_tokens(self, prompt: str) -> int:
        """Return the number of T5's tokens of a prompt, without the end token: the transformer's text has as many."""
        return self.tokenizers.t5.count(prompt)


def padded(states_BLD: torch.Tensor, least: int) -> torch.Tensor:
    """Return text states padded with zeros to a least length, to which the transformer attends."""
    return torch.nn.functional.pad(states_BLD, (0, 0, 0, max(0, least - states_BLD.shape[1])))


def text_mask(lengths: Sequence[int], least: int, device: torch.device) -> torch.Tensor | None:
    """Return which text tokens (B, L) each sample attends to: its own and the zeros up to the least length.

    None for all. diffusers' pipeline has no mask: its prompts, of which only those beyond the least length need one,
    get more zeros in a batch with a longer prompt. Here a batch of several lengths equals each prompt alone.
    """
    ends = [max(length, least) for length in lengths]
    longest = max(ends)
    if min(ends) == longest:
        return None
    ends_B1 = tensor_on([[end] for end in ends], device)
    return torch.arange(longest, device=device)[None] < ends_B1
