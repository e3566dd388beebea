"""ERNIE-Image: loading it from a diffusers folder or a Hugging Face repository, and running its parts.

Its conditioning is the states of Ministral 3's last layer but one; prompts are read without a template.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from modules.diffusion.latents import channels_to_patches, patches_to_channels
from modules.families.ernie_image.spec import ERNIE_IMAGE, MAX_TOKENS, ErnieImageSettings
from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import ChatModel, DenoiserInputs, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec
from modules.system.devices import tensor_on

_START = "<s>"


@dataclass(frozen=True, eq=False)
class PlainReader(ChatReader):
    """Reads prompts without a template, with the special tokens that the tokenizer itself adds."""

    def ids(self, prompt: str) -> list[int]:
        """Return the ids of a prompt; without any token it is the start token."""
        ids: list[int] = self.tokenizer.tokenizer.encode(prompt).ids[: self.max_tokens]
        return ids or [self.tokenizer.id_of(_START)]


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer) -> PlainReader:
    """Return how prompts are read: without padding, which the transformer does not attend to."""
    return PlainReader(encoder, tokenizer, ChatTemplate("", ""), MAX_TOKENS, layers=(-2,))


@dataclass(eq=False)
class ErnieImage(ChatModel[TokenConditioning]):
    """A transformer, the language model of a Ministral 3, a VAE; implements `ModelFamily`."""

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 32, H, W). The transformer puts an image behind its text, and masks the padding."""
        output = self._denoise(
            hidden_states=patches_to_channels(given.noisy_BCHW),
            timestep=given.time_B,
            text_bth=given.cast(given.text.states_BLD),
            text_lens=tensor_on(list(given.text.lengths), given.noisy_BCHW.device),
        )
        return channels_to_patches(output)


NORM_EPSILON = 1e-5
"""The epsilon of the latents' batch norm, as in training. The published config has FLUX.2's 1e-4, which
`ErnieImagePipeline` does not read."""


def load(request: LoadRequest[ErnieImageSettings]) -> ErnieImage:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not ERNIE-Image.
    """
    files = read_model(request, ERNIE_IMAGE)
    files.parts["vae"].register_to_config(batch_norm_eps=NORM_EPSILON)
    return ErnieImage(
        **flow_facts(files, ERNIE_IMAGE, "ernie_image"),
        reader=prompt_reader(files.parts["text_encoder"], load_chat_tokenizer(files.tokenizers.get("text_encoder"))),
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of an `ErnieImageTransformer2DModel`, which always masks the padding."""
    transformer.pos_embed.forward = partial(_traced_positions, transformer.pos_embed)
    config = transformer.config

    def inputs(size: InputSize) -> dict[str, Any]:
        sides = size.height // size.patch, size.width // size.patch
        return {
            "hidden_states": torch.empty(size.batch, config.in_channels, *sides),
            "timestep": size.times(),
            "text_bth": size.text(config.text_in_dim),
            "text_lens": torch.empty(size.batch, dtype=torch.int64),
        }

    return forward_pass(transformer, spec, inputs, text=["text_bth"])


def _traced_positions(embedding: Any, ids_BL3: torch.Tensor) -> torch.Tensor:
    """Return the angles (B, L, 1, D) of an `ErnieImageEmbedND3` without switching autocast off: meta has none."""
    angles = [
        ids_BL3[..., axis, None] * embedding.theta ** -(torch.arange(0, size, 2, device=ids_BL3.device) / size)
        for axis, size in enumerate(embedding.axes_dim)
    ]
    half_BL1C = torch.cat(angles, dim=-1).unsqueeze(2)
    return torch.stack([half_BL1C, half_BL1C], dim=-1).flatten(-2)
