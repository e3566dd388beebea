"""The prompts of the toy transformer: the states of a Qwen3's last layer but one, read through a template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from modules.system.devices import tensor_on

START, END = "<|user|>", "<|assistant|>"


@dataclass(frozen=True)
class PromptTokenizer:
    """A tokenizer of transformers' format, with the template of the model's prompts."""

    tokenizer: Tokenizer

    def templated(self, prompt: str, most_tokens: int) -> list[int]:
        """Return the ids of a prompt in its template, of `most_tokens` in all."""
        ids: list[int] = self.tokenizer.encode(f"{START}{prompt}{END}", add_special_tokens=False).ids
        return ids[:most_tokens]

    def count(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without the template."""
        return len(self.tokenizer.encode(prompt, add_special_tokens=False).ids)

    def beyond(self, prompt: str, num_tokens: int) -> str:
        """Return the rest of a prompt after its first tokens."""
        offsets = self.tokenizer.encode(prompt, add_special_tokens=False).offsets
        return prompt[offsets[num_tokens][0] :] if len(offsets) > num_tokens else ""


def load_tokenizer(folder: Path | None) -> PromptTokenizer:
    """Return the tokenizer of a folder; the program contains none for this family."""
    if folder is None:
        raise FileNotFoundError("the model has no tokenizer folder")
    return PromptTokenizer(Tokenizer.from_file(str(folder / "tokenizer.json")))


def encode(encoder: Any, forward: Callable[..., Any], ids: list[int]) -> torch.Tensor:
    """Return the states (L, D) of a prompt's tokens: alone, so that they depend on no other prompt of the batch."""
    ids_1L = tensor_on([ids], next(encoder.parameters()).device, torch.long)
    states_1LD: torch.Tensor = forward(input_ids=ids_1L, output_hidden_states=True).hidden_states[-2]
    return states_1LD[0]
