"""The prompts of Z-Image: the states of Qwen3's last layer but one, read as one message of a chat.

The template is Qwen3's for a single message of the user, with the beginning of an answer and thinking enabled.
"""

from __future__ import annotations

from typing import Any

from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer
from modules.families.z_image.spec import MAX_TOKENS

_TEMPLATE = ChatTemplate("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer) -> ChatReader:
    """Return how prompts are read: without padding, which the transformer adds itself."""
    return ChatReader(encoder, tokenizer, _TEMPLATE, MAX_TOKENS, layers=(-2,))
