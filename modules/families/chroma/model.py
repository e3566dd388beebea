"""Chroma1: loading it from a diffusers folder or a Hugging Face repository, and running its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modules.diffusion.flow import FlowProcess
from modules.families.chroma.spec import CHROMA, FROZEN, MAX_TOKENS, ChromaSettings
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.packing import image_ids, pack, unpack
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import load_t5_tokenizer
from modules.families.parts.text_model import DenoiserInputs, FlowModel, T5Model, flow_facts
from modules.families.parts.traced_passes import TracedPasses, packed_passes
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec


@dataclass(eq=False)
class Chroma(T5Model[FlowProcess], FlowModel[TokenConditioning]):
    """A transformer, a T5-XXL, a VAE; implements `FamilyWithEmbeddings`."""

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss trains a layer: all but the VAE's and the approximator, which stays as it is.

        The approximator is the model's modulation: adapters and fine-tunes of other programs leave it out, too.
        """
        return super().reaches(part, name) and not f"{name}.".startswith(FROZEN)

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 16, H, W)."""
        text, packed_BLC, ids_L3 = given.text, pack(given.noisy_BCHW), image_ids(given.noisy_BCHW)
        output = self._denoise(
            hidden_states=packed_BLC,
            timestep=given.time_B,
            encoder_hidden_states=given.cast(text.states_BLD),
            txt_ids=ids_L3.new_zeros(text.states_BLD.shape[1], 3),
            img_ids=ids_L3,
            attention_mask=attention_mask(text.lengths, packed_BLC.shape[1], packed_BLC.device),
        )
        return unpack(output, *given.noisy_BCHW.shape[-2:])


def attention_mask(lengths: Sequence[int], num_image_tokens: int, device: torch.device) -> torch.Tensor | None:
    """Return which tokens (B, L + image) each sample attends to; None for all, where the prompts are equally long.

    `lengths` are the visible tokens of each prompt, with one token of its padding. The mask is boolean: diffusers'
    pipeline (0.42) makes one of numbers, which PyTorch's attention adds to its scores instead, so that masked tokens
    are seen.
    """
    is_text_BL = visible_tokens(lengths, device)
    if is_text_BL is None:
        return None
    return torch.cat([is_text_BL, is_text_BL.new_ones(len(lengths), num_image_tokens)], dim=1)


def load(request: LoadRequest[ChromaSettings]) -> Chroma:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Chroma1.
    """
    files = read_model(request, CHROMA)
    t5 = T5Tower(
        files.parts["text_encoder"],
        load_t5_tokenizer(files.tokenizers.get("text_encoder")),
        max_tokens=MAX_TOKENS,
        masks_padding=True,
        kept_padding=1,
    )
    return Chroma(**flow_facts(files, CHROMA, "chroma1"), towers={"text_encoder": t5})


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `ChromaTransformer2DModel`, with the mask that prompts of several lengths need."""
    return packed_passes(
        transformer, spec, num_axes=3, more=lambda size: {"attention_mask": size.mask(size.num_patches)}
    )
