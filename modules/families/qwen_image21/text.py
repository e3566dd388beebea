"""The prompts of Qwen-Image 2.1: the states of Qwen3-VL's last layer before its norm, without the system message.

The template is a sentence of the system and one message of the user, with the beginning of an answer. The states of the
system's message are cut off, the rest of the template is kept (`QwenImage21Pipeline`, 0.42).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer
from modules.families.qwen_image21.spec import MAX_TOKENS

_SYSTEM = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
TEMPLATE = ChatTemplate(f"{_SYSTEM}<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
EMPTY = " "
"""The text that is read for an empty prompt, as in the pipeline."""


@dataclass(frozen=True, eq=False)
class UnnormedReader(ChatReader):
    """Reads the states before the norm behind the last layer: since version 5, transformers has them after it."""

    def encode(self, forward: Callable[..., Any], prompts: Sequence[str]) -> list[torch.Tensor]:
        """Return the states (L, D) of each prompt, for which the norm returns what it gets."""
        handle = self.encoder.norm.register_forward_hook(lambda module, given, states: given[0])
        try:
            return super().encode(forward, prompts)
        finally:
            handle.remove()

    def ids(self, prompt: str) -> list[int]:
        """Return the ids of a prompt in its template; an empty one is read as a space."""
        return super().ids(prompt or EMPTY)

    def identity(self) -> str:
        """Return everything but the encoder's weights that affects how a prompt is encoded."""
        return f"{super().identity()}|before the norm"


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer) -> UnnormedReader:
    """Return how prompts are read: without padding, which the transformer does not attend to."""
    most = tokenizer.count(TEMPLATE.before) + MAX_TOKENS + tokenizer.count(TEMPLATE.after)
    dropped = tokenizer.count(_SYSTEM)
    return UnnormedReader(encoder, tokenizer, TEMPLATE, most, layers=(-1,), dropped=dropped, keeps_end=True)
