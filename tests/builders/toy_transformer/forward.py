"""The loaded toy transformer: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning, SizeConditioning
from modules.data.inputs import NO_INPUTS
from modules.diffusion.flow import FlowProcess
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.latent_model import LatentModel
from tests.builders.toy_transformer.text import PromptTokenizer, encode


@dataclass(eq=False)
class ToyTransformer(LatentModel[FlowProcess]):
    """A transformer, a text encoder, a VAE; implements `ModelFamily`."""

    tokenizer: PromptTokenizer
    text_tokens: int

    def reaches(self, part: str, name: str) -> bool:
        return part == "transformer"

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TokenConditioning:
        encoder, forward = self.modules["text_encoder"], self._forward("text_encoder")
        ids = [self.tokenizer.templated(prompt, self.text_tokens) for prompt in prompts]
        return TokenConditioning.of([encode(encoder, forward, one) for one in ids])

    def with_size_conditioning(
        self, conditioning: Conditioning, size_conditionings: Sequence[SizeConditioning]
    ) -> TokenConditioning:
        return _tokens(conditioning)

    def with_empty_prompts(
        self, conditioning: Conditioning, empty_for: Sequence[Collection[int]], empty: Conditioning
    ) -> TokenConditioning:
        return _tokens(conditioning).with_empty_prompts([0 in e for e in empty_for], _tokens(empty))

    def conditioning_from(self, tensors: Mapping[str, torch.Tensor]) -> TokenConditioning:
        return TokenConditioning.from_tensors(tensors)

    def join(self, conditionings: Sequence[Conditioning], empty: Conditioning) -> TokenConditioning:
        return TokenConditioning.join([_tokens(c) for c in conditionings])

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        dtype = self._input_dtype()
        images = list(noisy_BCHW.to(dtype).unsqueeze(2))  # a list of (C, F, H, W) with one frame
        states = [states_LD.to(dtype) for states_LD in _tokens(conditioning).split()]
        outputs = self._forward("transformer")(images, self.process.time_input(timesteps_B), states, return_dict=False)
        return self.process.velocity(torch.stack(outputs[0]).squeeze(2))

    def text_identity(self) -> str:
        return f"{self.tokenizer.tokenizer.to_str()}|{self.text_tokens}"

    def count_tokens(self, prompt: str) -> int:
        return self.tokenizer.count(prompt)


def _tokens(conditioning: Conditioning) -> TokenConditioning:
    assert isinstance(conditioning, TokenConditioning)
    return conditioning
