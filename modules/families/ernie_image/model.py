"""ERNIE-Image: loading it from a diffusers folder or a Hugging Face repository, and running its parts.

Its conditioning is the states of Ministral 3's last layer but one; prompts are read without a template.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from modules.diffusion.latents import channels_to_patches, patches_to_channels
from modules.families.ernie_image.spec import ERNIE_IMAGE, MAX_TOKENS, ErnieImageSettings
from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import ChatModel, DenoiserInputs, flow_facts
from modules.families.protocol import LoadRequest
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

    Raises DarkroomError where a file is missing or the model is not ERNIE-Image.
    """
    files = read_model(request, ERNIE_IMAGE)
    files.parts["vae"].register_to_config(batch_norm_eps=NORM_EPSILON)
    return ErnieImage(
        **flow_facts(files, ERNIE_IMAGE, "ernie_image"),
        reader=prompt_reader(files.parts["text_encoder"], load_chat_tokenizer(files.tokenizers.get("text_encoder"))),
    )
