"""Qwen-Image 2.1: loading it from a diffusers folder, a Hugging Face repository, or a file of the transformer.

Prompts are the states of Qwen3-VL's last layer before its norm, without the system message. The template is a sentence
of the system and one message of the user, with the beginning of an answer. The states of the system's message are cut
off, the rest of the template is kept (`QwenImage21Pipeline`, 0.42).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import ChatModel, DenoiserInputs, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.qwen_image21.spec import MAX_TOKENS, QWEN_IMAGE21, QwenImage21Settings
from modules.families.spec import FamilySpec

_SYSTEM = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
TEMPLATE = ChatTemplate(f"{_SYSTEM}<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
EMPTY = " "
"""The text that is read for an empty prompt, as in the pipeline."""


@dataclass(frozen=True, eq=False)
class SpaceReader(ChatReader):
    """Reads an empty prompt as a space."""

    def ids(self, prompt: str) -> list[int]:
        """Return the ids of a prompt in its template."""
        return super().ids(prompt or EMPTY)


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer) -> SpaceReader:
    """Return how prompts are read: without padding, which the transformer does not attend to."""
    most = tokenizer.count(TEMPLATE.before) + MAX_TOKENS + tokenizer.count(TEMPLATE.after)
    dropped = tokenizer.count(_SYSTEM)
    return SpaceReader(
        encoder, tokenizer, TEMPLATE, most, layers=(-1,), dropped=dropped, keeps_end=True, is_before_norm=True
    )


@dataclass(eq=False)
class QwenImage21(ChatModel[TokenConditioning]):
    """A transformer, the language model of a Qwen3-VL, a VAE; implements `ModelFamily`."""

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 64, H, W)."""
        return self._denoise(
            hidden_states=given.noisy_BCHW,
            encoder_hidden_states=given.cast(given.text.states_BLD),
            timestep=given.time_B,
            encoder_hidden_states_mask=visible_tokens(given.text.lengths, given.noisy_BCHW.device),
        )


def load(request: LoadRequest[QwenImage21Settings]) -> QwenImage21:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Qwen-Image 2.1.
    """
    files = read_model(request, QWEN_IMAGE21)
    return QwenImage21(
        **flow_facts(files, QWEN_IMAGE21, "qwen_image21"),
        reader=prompt_reader(files.parts["text_encoder"], load_chat_tokenizer(files.tokenizers.get("text_encoder"))),
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `QwenImage21Transformer2DModel`, for prompts of equal lengths."""

    def inputs(size: InputSize) -> dict[str, Any]:
        return {
            "hidden_states": size.latents(size.channels),
            "encoder_hidden_states": size.text(transformer.config.context_in_dim),
            "timestep": size.times(),
        }

    return forward_pass(transformer, spec, inputs)
