"""Lumina-Image 2.0: loading it from a diffusers folder or a Hugging Face repository, and running its parts.

Prompts are Gemma 2's states before its last layer, of a prompt after an instruction. Negative prompts and the empty one
are read alone (`Lumina2Pipeline`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from modules.families.lumina2.positions import Positions, set_positions
from modules.families.lumina2.spec import LUMINA2, MAX_TOKENS, Lumina2Settings
from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer
from modules.families.parts.conditioning import TokenConditioning, token_mask
from modules.families.parts.gemma import START, InstructedModel, load_tokenizer
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import DenoiserInputs, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec

INSTRUCTION = (
    "You are an assistant designed to generate superior images with the superior degree of image-text alignment based "
    "on textual prompts or user prompts. <Prompt Start> "
)
"""The usual one of those with which the published model was trained."""


def plain_reader(encoder: Any, tokenizer: ChatTokenizer) -> ChatReader:
    """Return how negative prompts and the empty one are read."""
    return ChatReader(encoder, tokenizer, ChatTemplate(START, ""), MAX_TOKENS, layers=(-2,))


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer) -> ChatReader:
    """Return how prompts are read: the instruction's states are part of theirs."""
    return ChatReader(encoder, tokenizer, ChatTemplate(f"{START}{INSTRUCTION}", ""), MAX_TOKENS, layers=(-2,))


@dataclass(eq=False)
class Lumina2(InstructedModel):
    """A transformer, a Gemma 2, a VAE; implements `ModelFamily`."""

    positions: Positions

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 16, H, W)."""
        with self.positions.of(given.text.lengths):
            return self._denoise(
                hidden_states=given.noisy_BCHW,
                timestep=given.time_B,
                encoder_hidden_states=given.cast(given.text.states_BLD),
                encoder_attention_mask=token_mask(given.text.lengths, given.noisy_BCHW.device),
            )


def load(request: LoadRequest[Lumina2Settings]) -> Lumina2:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Lumina-Image 2.0.
    """
    files = read_model(request, LUMINA2)
    positions = set_positions(files.parts["transformer"])
    encoder, tokenizer = files.parts["text_encoder"], load_tokenizer(files.tokenizers.get("text_encoder"))
    return Lumina2(
        **flow_facts(files, LUMINA2, "lumina2"),
        reader=prompt_reader(encoder, tokenizer),
        plain=plain_reader(encoder, tokenizer),
        positions=positions,
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `Lumina2Transformer2DModel`, which goes through its images one by one."""
    config, positions = transformer.config, set_positions(transformer)

    def inputs(size: InputSize) -> dict[str, Any]:
        positions.lengths = [size.tokens]
        return {
            "hidden_states": size.latents(config.in_channels),
            "timestep": size.times(),
            "encoder_hidden_states": size.text(config.cap_feat_dim),
            "encoder_attention_mask": size.mask(),
        }

    return forward_pass(transformer, spec, inputs, is_per_image=True)
