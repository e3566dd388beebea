"""The shared base of models whose only text encoder is a T5, of which they see single tokens."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from torch import nn

from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.latent_model import Process
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.text_model import TextModel
from modules.families.parts.token_rows import extended


@dataclass(eq=False)
class T5Model(TextModel[Process, TokenConditioning], ABC, Generic[Process]):
    """A loaded model with a T5, `text_encoder`; implements `FamilyWithWords` but for its own forward pass."""

    text_class = TokenConditioning

    t5: T5Tower

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TokenConditioning:
        """Return the states of prompts, each with its kept padding; `padded_like` changes nothing."""
        return TokenConditioning.of(self.t5.encode(self._forward("text_encoder"), prompts))

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return self.t5.identity()

    def count_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without the end token."""
        return self.t5.tokenizer.count(prompt)

    # -- embeddings

    def token_ids(self, part: str, text: str) -> list[int]:
        """Return the ids of a text's tokens."""
        return self.t5.tokenizer.ids(text)

    def add_words(self, rows: Mapping[str, Mapping[str, nn.Parameter]]) -> None:
        """Add embeddings: new rows (N, D) by placeholder and text encoder. All in one call."""
        self.t5 = self.t5.with_words({placeholder: of["text_encoder"] for placeholder, of in rows.items()})

    @torch.no_grad()
    def word_states(self, part: str, placeholder: str) -> torch.Tensor:
        """Return T5's states (N, D) at the places of an embedding, in a prompt of it alone, in float32."""
        return self.t5.word_states(self._forward(part), placeholder)

    def add_outputs(self, part: str, placeholder: str, rows_ND: nn.Parameter) -> None:
        """Replace T5's states at the places of an embedding by rows (N, D)."""
        extended(self.t5.encoder).add_outputs(self.t5.tokenizer.words[placeholder], rows_ND)
