"""The prompts of Lumina-Image 2.0: Gemma 2's states before its last layer, of a prompt after an instruction.

Negative prompts and the empty one are read alone (`Lumina2Pipeline`).
"""

from __future__ import annotations

from typing import Any

from modules.families.lumina2.settings import MAX_TOKENS
from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer
from modules.families.parts.gemma import START

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
