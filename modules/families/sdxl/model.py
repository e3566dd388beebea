"""Stable Diffusion XL: loading it from a diffusers folder, a Hugging Face repository or a single file, and running its
parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from modules.data.conditioning import Conditioning, SizeConditioning
from modules.data.inputs import NO_INPUTS
from modules.families.parts.conditioning import TextConditioning, replace_rows
from modules.families.parts.files import ModelFiles
from modules.families.parts.latent_diffusion import LatentDiffusion
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.sdxl.spec import SDXL, SdxlSettings
from modules.system.devices import Device, move, tensor_on


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


@dataclass(frozen=True, eq=False)
class SdxlConditioning:
    """Text states of B prompts, their pooled state (B, E), and sizes (B, 6) once the images are known.

    The pooled state is the second encoder's, of a prompt's first chunk. The states of both encoders are concatenated
    along the last axis.
    """

    text: TextConditioning
    pooled_BE: torch.Tensor
    sizes_B6: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.text)

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Move it to a device, and the text to a dtype if one is given; sizes stay float32, exact to the pixel."""
        sizes_B6 = None if self.sizes_B6 is None else move(self.sizes_B6, device)
        return type(self)(self.text.to(device, dtype), move(self.pooled_BE, device, dtype=dtype), sizes_B6)

    def select(self, indices: Sequence[int]) -> Self:
        """Return the conditioning of some of the prompts, in that order."""
        rows = list(indices)
        sizes_B6 = None if self.sizes_B6 is None else self.sizes_B6[rows]
        return type(self)(self.text.select(rows), self.pooled_BE[rows], sizes_B6)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the text's tensors by name, for a cache entry; sizes belong to images and are not among them."""
        return {**self.text.tensors(), "pooled": self.pooled_BE}

    def with_size_conditioning(self, size_conditionings: Sequence[SizeConditioning]) -> Self:
        """Return it with the size conditioning of its images, one per prompt."""
        assert len(size_conditionings) == len(self), (
            f"{len(size_conditionings)} size conditionings for {len(self)} prompts"
        )
        sizes_B6 = tensor_on([_sizes(f) for f in size_conditionings], self.pooled_BE.device, torch.float32)
        return replace(self, sizes_B6=sizes_B6)

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self, *, first_width: int) -> Self:
        """Return it with `empty` for the encoders 0 and 1 of each prompt; the first's states have `first_width`."""
        is_first, is_second = ([index in e for e in empty_for] for index in (0, 1))
        states_BLD, empty_1LD = self.text.states_BLD, empty.text.states_BLD
        first_BLD = replace_rows(states_BLD[..., :first_width], empty_1LD[..., :first_width], is_first)
        second_BLD = replace_rows(states_BLD[..., first_width:], empty_1LD[..., first_width:], is_second)
        pooled_BE = replace_rows(self.pooled_BE, empty.pooled_BE, is_second)
        return replace(self, text=TextConditioning(torch.cat([first_BLD, second_BLD], dim=-1)), pooled_BE=pooled_BE)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`. Raises KeyError if one is missing."""
        return cls(TextConditioning.from_tensors(tensors), tensors["pooled"])

    @classmethod
    def join(cls, parts: Sequence[Self], empty: Self) -> Self:
        """Join conditionings into one, without sizes; shorter ones are padded with the empty prompt's states."""
        text = TextConditioning.join([p.text for p in parts], empty.text)
        return cls(text, torch.cat([p.pooled_BE for p in parts]))


def _sizes(size_conditioning: SizeConditioning) -> list[int]:
    """Return the six numbers in the model's training order: original size, crop, target size, height before width."""
    original, target = size_conditioning.original, size_conditioning.target
    crop = [size_conditioning.crop_top_px, size_conditioning.crop_left_px]
    return [original.height_px, original.width_px, *crop, target.height_px, target.width_px]


def load(request: LoadRequest[SdxlSettings]) -> StableDiffusionXL:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not SDXL.
    """
    return assemble(read_model(request, SDXL), request.settings)


def assemble(files: ModelFiles, settings: SdxlSettings) -> StableDiffusionXL:
    """Build the model from its files, which were read from any form.

    SDXL always skips the last layer of both encoders; clip skip counts the layers skipped beyond it. The pooled state
    always comes from the last layer, regardless of clip skip. Raises DarkroomError for a variant that is not supported.
    """
    towers = {
        name: files.tower(
            name,
            skipped_layers=1 + settings.skipped_layers(name),
            is_normed=False,
            is_weighted=settings.prompt_weighting,
        )
        for name in SDXL.names_of("text_encoder")
    }
    return StableDiffusionXL.of(
        SDXL, files, settings, towers, lambda prediction: naming_of("sdxl", files.parts, prediction=prediction)
    )
