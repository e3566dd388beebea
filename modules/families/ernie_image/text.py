"""The prompts of ERNIE-Image: the states of Ministral 3's last layer but one, which reads plain prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from modules.families.ernie_image.settings import MAX_TOKENS
from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer

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
