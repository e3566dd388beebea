"""The prompts of Z-Image: the states of Qwen3's last layer but one, read as one message of a chat.

The template is Qwen3's for a single message of the user, with the beginning of an answer and thinking enabled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from modules.families.parts.tokenizer_file import read_tokenizer
from modules.families.z_image.spec import MAX_TOKENS
from modules.system.devices import tensor_on
from modules.system.errors import DarkroomError

_START, _END = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True)
class PromptTokenizer:
    """The tokenizer of a Qwen3, with the template of the model's prompts."""

    tokenizer: Tokenizer

    def templated(self, prompt: str) -> list[int]:
        """Return the ids of a prompt in its template, at most 512."""
        ids: list[int] = self.tokenizer.encode(f"{_START}{prompt}{_END}", add_special_tokens=False).ids
        return ids[:MAX_TOKENS]

    def count(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without the template."""
        return len(self.tokenizer.encode(prompt, add_special_tokens=False).ids)

    def beyond(self, prompt: str, num_tokens: int) -> str:
        """Return the rest of a prompt after its first tokens."""
        offsets = self.tokenizer.encode(prompt, add_special_tokens=False).offsets
        return prompt[offsets[num_tokens][0] :] if len(offsets) > num_tokens else ""


def load_tokenizer(folder: Path | None) -> PromptTokenizer:
    """Return the tokenizer of a model's folder. Raises DarkroomError where it is missing (the program has none) or
    damaged.
    """
    tokenizer = read_tokenizer(folder)
    if tokenizer is None:
        raise DarkroomError(
            "The model has no tokenizer: tokenizer/tokenizer.json is missing.",
            advice="Download it again, as a diffusers folder or repository.",
        )
    return PromptTokenizer(tokenizer)


def encode(encoder: Any, forward: Callable[..., Any], ids: list[int]) -> torch.Tensor:
    """Return the states (L, D) of a prompt's tokens: alone, so that they depend on no other prompt of the batch."""
    ids_1L = tensor_on([ids], next(encoder.parameters()).device, torch.long)
    states_1LD: torch.Tensor = forward(input_ids=ids_1L, output_hidden_states=True).hidden_states[-2]
    return states_1LD[0]
