"""Gemma 2 as a text encoder (Riviere et al. 2024): the buffer that files do not have, its tokenizer, and models whose
prompts it reads after an instruction.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modules.families.parts.chat_text import ChatReader
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.text_model import ChatModel

START = "<bos>"
"""The token before every text."""


def fill_buffers(encoder: Any) -> None:
    """Make the factor of the embeddings, the root of their width, which transformers keeps as a buffer: in float32,
    since it is cast to the dtype of the weights for each use.
    """
    embedding = encoder.embed_tokens
    embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)


def load_tokenizer(folder: Path | None) -> ChatTokenizer:
    """Return the tokenizer of a model's folder. Raises DarkroomError if it is missing, damaged or not Gemma's."""
    tokenizer = load_chat_tokenizer(folder)
    tokenizer.id_of(START)
    return tokenizer


@dataclass(eq=False)
class InstructedModel(ChatModel[TokenConditioning], ABC):
    """A loaded flow model whose `reader` reads prompts after an instruction.

    `plain` reads negative prompts and the empty one without it, as the published models were trained.
    """

    plain: ChatReader

    def normalize_prompt(self, prompt: str) -> str:
        """Return a prompt as it is read."""
        return prompt

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TokenConditioning:
        """Return the states of prompts. None depends on the others, so `padded_like` changes nothing."""
        return self.read([(self.reader if self.normalize_prompt(prompt) else self.plain, prompt) for prompt in prompts])

    def encode_guided(self, negative: str, prompt: str) -> TokenConditioning:
        """Return the states of a negative prompt, without the instruction, and of a prompt."""
        return TokenConditioning.join([self.read([(self.plain, negative)]), self.encode_prompts([prompt])])

    def read(self, read_by: Sequence[tuple[ChatReader, str]]) -> TokenConditioning:
        """Return the states of prompts, each read by its reader."""
        forward = self._forward("text_encoder")
        return TokenConditioning.of(
            [reader.encode(forward, [self.normalize_prompt(prompt)])[0] for reader, prompt in read_by]
        )
