"""The prompts of Qwen-Image: the last states of Qwen2.5-VL, without those of the system message before a prompt."""

from __future__ import annotations

from typing import Any

from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer
from modules.families.qwen_image.spec import MAX_TOKENS

_SYSTEM = (
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the "
    "objects and background:"
)
TEMPLATE = ChatTemplate(
    f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
)
DROPPED = 34
"""The tokens of the template before a prompt (`QwenImagePipeline`)."""
EMPTY = " "
"""What an empty prompt is read as: the negative prompt in the examples of the model's authors."""


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer) -> ChatReader:
    """Return how prompts are read: without padding, which the transformer does not attend to."""
    return ChatReader(encoder, tokenizer, TEMPLATE, DROPPED + MAX_TOKENS, layers=(-1,), dropped=DROPPED)
