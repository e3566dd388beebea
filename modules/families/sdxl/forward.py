"""A loaded Stable Diffusion XL: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning, SizeConditioning
from modules.data.inputs import NO_INPUTS
from modules.families.parts.conditioning import TextConditioning
from modules.families.parts.latent_diffusion import LatentDiffusion
from modules.families.sdxl.text import SdxlConditioning


@dataclass(eq=False)
class StableDiffusionXL(LatentDiffusion):
    """A UNet, two text encoders, a VAE; implements `ModelFamily`."""

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> SdxlConditioning:
        """Return text states (B, 77 * chunks, D1 + D2) and pooled states (B, E) of prompts, without sizes yet."""
        num_chunks = max(tower.num_chunks((*prompts, *padded_like)) for tower in self.towers.values())
        first, second = (
            tower.encode(self._forward(name), prompts, num_chunks=num_chunks) for name, tower in self.towers.items()
        )
        assert second.pooled_BE is not None, "the second text encoder has a projection"
        states_BLD = torch.cat([first.states_BLD, second.states_BLD], dim=-1)
        return SdxlConditioning(TextConditioning(states_BLD), second.pooled_BE)

    def with_size_conditioning(
        self, conditioning: Conditioning, size_conditionings: Sequence[SizeConditioning]
    ) -> SdxlConditioning:
        """Return the conditioning with the sizes of its images (Podell et al. 2023, sections 2.2 and 2.3)."""
        return _text(conditioning).with_size_conditioning(size_conditionings)

    def with_empty_prompts(
        self, conditioning: Conditioning, empty_for: Sequence[Collection[int]], empty: Conditioning
    ) -> SdxlConditioning:
        """Return the conditioning with the empty prompt's states for encoders, and its pooled state for the second.

        An encoder's empty prompt gives the same states as if the whole prompt were empty: the encoders do not see each
        other.
        """
        width = int(self.towers["text_encoder"].encoder.config.hidden_size)
        return _text(conditioning).with_empty_prompts(empty_for, _text(empty), first_width=width)

    def conditioning_from(self, tensors: Mapping[str, torch.Tensor]) -> SdxlConditioning:
        """Return the conditioning of a cache entry."""
        return SdxlConditioning.from_tensors(tensors)

    def join(self, conditionings: Sequence[Conditioning], empty: Conditioning) -> SdxlConditioning:
        """Join several conditionings into one, padded to the longest with the empty prompt's states."""
        return SdxlConditioning.join([_text(c) for c in conditionings], _text(empty))

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the UNet's output (B, 4, H, W); `inputs` are the further inputs of a variant."""
        text, dtype = _text(conditioning), self._input_dtype()
        assert text.sizes_B6 is not None, "SDXL needs size conditioning (see `with_size_conditioning`)"
        output = self._forward("unet")(
            self._unet_input(noisy_BCHW, inputs, dtype),
            timesteps_B,
            encoder_hidden_states=text.text.states_BLD.to(dtype),
            added_cond_kwargs={"text_embeds": text.pooled_BE.to(dtype), "time_ids": text.sizes_B6},
            return_dict=False,
        )
        result: torch.Tensor = output[0]
        return result


def _text(conditioning: Conditioning) -> SdxlConditioning:
    assert isinstance(conditioning, SdxlConditioning), f"conditioning of another family: {type(conditioning)}"
    return conditioning
