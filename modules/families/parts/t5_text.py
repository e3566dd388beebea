"""T5's text states for prompts (Raffel et al. 2020), with the padding that a family's denoiser sees.

FLUX.1 and SD 3 read the padding like a prompt: the encoder attends to it, and all states reach the denoiser. Chroma
and PixArt mask it in the encoder; of its states Chroma's transformer sees one, PixArt's none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from modules.families.parts.t5_tokens import T5Tokenizer
from modules.families.parts.token_rows import ExtendedEmbedding, add_words
from modules.system.devices import tensor_on


@dataclass(frozen=True, eq=False)
class T5Tower:
    """A T5 encoder with its tokenizer, and how its family reads prompts.

    Prompts are read up to `max_tokens`, the end token among them. `masks_padding`: the encoder does not attend to the
    padding. `kept_padding` is how many states of the padding each prompt keeps, None for all of them, up to
    `max_tokens`.
    """

    encoder: Any
    tokenizer: T5Tokenizer
    max_tokens: int
    masks_padding: bool
    kept_padding: int | None

    def __post_init__(self) -> None:
        """Turn dropout off, which T5's config has: in training the denoiser must see what it sees in samples."""
        for module in self.encoder.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            elif hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 0.0  # of the attention

    def encode(self, forward: Callable[..., Any], prompts: Sequence[str]) -> list[torch.Tensor]:
        """Return the states (L, D) of each prompt, with those of its padding that it keeps.

        Each prompt is encoded alone, so that its states depend on no other prompt of a batch. `forward` is the
        (checkpointed) forward pass of the encoder.
        """
        return [self._encode_one(forward, prompt) for prompt in prompts]

    def identity(self) -> str:
        """Return everything but the encoder's weights that affects how a prompt is encoded."""
        padding = f"{'masked' if self.masks_padding else 'attended'} {self.kept_padding}"
        return f"{self.tokenizer.identity()}|{self.max_tokens}|{padding}"

    def with_words(self, rows: Mapping[str, nn.Parameter]) -> T5Tower:
        """Add embeddings, rows (N, D) by placeholder, to the encoder; return the tower that reads them."""
        ids = add_words({"t5": self.encoder}, {placeholder: {"t5": r} for placeholder, r in rows.items()})
        return replace(self, tokenizer=self.tokenizer.with_words(ids.get("t5", {})))

    def word_states(self, forward: Callable[..., Any], placeholder: str) -> torch.Tensor:
        """Return the states (N, D) at the places of an embedding, in a prompt of it alone, in float32."""
        [states_LD] = self.encode(forward, [placeholder])
        return states_LD[: len(self.tokenizer.words[placeholder])].float().clone()

    def _encode_one(self, forward: Callable[..., Any], prompt: str) -> torch.Tensor:
        ids = self.tokenizer.read(prompt, self.max_tokens)
        kept = self.max_tokens if self.kept_padding is None else min(len(ids) + self.kept_padding, self.max_tokens)
        # Masked padding changes no other state, so none of it is read that is not kept.
        num_read = kept if self.masks_padding else self.max_tokens
        device = next(self.encoder.parameters()).device
        ids_1L = tensor_on([[*ids, *[self.tokenizer.pad_id] * (num_read - len(ids))]], device, torch.long)
        masked = {"attention_mask": _mask(len(ids), num_read, device)} if self.masks_padding else {}
        states_1LD: torch.Tensor = forward(input_ids=ids_1L, **masked).last_hidden_state
        embedding = self.encoder.get_input_embeddings()
        if isinstance(embedding, ExtendedEmbedding):
            states_1LD = embedding.with_outputs(ids_1L, states_1LD)
        return states_1LD[0, :kept]


def _mask(num_tokens: int, length: int, device: torch.device) -> torch.Tensor:
    return tensor_on([[1] * num_tokens + [0] * (length - num_tokens)], device, torch.long)
