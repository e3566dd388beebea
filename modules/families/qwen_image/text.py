"""The prompts of Qwen-Image: Qwen2.5-VL's last states, without the states of the system message before a prompt."""

from __future__ import annotations

from typing import Any

from modules.families.parts.chat_text import DESCRIBE_IMAGE, ChatReader
from modules.families.parts.chat_tokens import ChatTokenizer
from modules.families.qwen_image.spec import MAX_TOKENS

DROPPED = 34
"""The tokens of the template before a prompt (`QwenImagePipeline`)."""
EMPTY = " "
"""The text that is read for an empty prompt: the negative prompt in the examples of the model's authors."""


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer) -> ChatReader:
    """Return how prompts are read: without padding, which the transformer does not attend to."""
    return ChatReader(encoder, tokenizer, DESCRIBE_IMAGE, DROPPED + MAX_TOKENS, layers=(-1,), dropped=DROPPED)
