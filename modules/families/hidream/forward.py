"""A loaded HiDream I1: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.hidream.text import CLIPS, LLAMA, T5, HiDreamConditioning, pooled_states
from modules.families.parts.chat_text import ChatReader
from modules.families.parts.clip_text import TextTower
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.text_model import FlowModel


@dataclass(eq=False)
class HiDream(FlowModel[HiDreamConditioning]):
    """A transformer, two CLIPs, a T5-XXL, a Llama 3.1, a VAE; implements `ModelFamily`."""

    text_class = HiDreamConditioning

    clips: Mapping[str, TextTower]
    t5: T5Tower
    llama: ChatReader

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: the transformer's are reached, the text is not trained."""
        return part == self.spec.denoiser.name

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> HiDreamConditioning:
        """Return the states of prompts; all have the same number of tokens, so `padded_like` changes nothing."""
        most = self.t5.max_tokens
        pooled = {n: pooled_states(self.clips[n], self._forward(n), prompts, most) for n in CLIPS}
        rows, num_layers = self.llama.encode(self._forward(LLAMA), prompts), len(self.llama.layers)
        llama = [states_LX.unflatten(-1, (num_layers, -1)) for states_LX in rows]
        states = {
            T5: torch.stack(self.t5.encode(self._forward(T5), prompts)),
            LLAMA: torch.stack(llama).transpose(1, 2).contiguous(),
        }
        return HiDreamConditioning(states, pooled)

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity (B, 16, H, W)."""
        dtype = self._input_dtype()
        output = self._forward(self.spec.denoiser.name)(
            hidden_states=noisy_BCHW.to(dtype),
            timesteps=self.process.time_input(timesteps_B),
            **self._text(conditioning).inputs(dtype),
            return_dict=False,
        )
        return self.process.velocity(output[0])

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        clips = (f"{name} {tower.identity()}" for name, tower in self.clips.items())
        return "|".join([*clips, self.t5.identity(), self.llama.identity()])

    def count_tokens(self, prompt: str) -> int:
        """Return the number of T5's tokens of a prompt, without the end token."""
        return self.t5.tokenizer.count(prompt)
