"""The conditioning of FLUX.1: T5's states of all tokens, padding included, and CLIP's state of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from modules.families.parts.clip_tokens import ClipTokenizer
from modules.families.parts.conditioning import PooledConditioning, replaced_rows
from modules.system.devices import tensor_on


@dataclass(frozen=True, eq=False)
class FluxConditioning(PooledConditioning):
    """T5's states (B, L, D) of B prompts, CLIP's pooled states (B, E), and the guidance scale of samples.

    The transformer attends to the padding, and its states depend on the prompt, so a cache entry has them, too.
    """

    guidance: float | None = None

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self) -> Self:
        """Return it with the empty prompt's states for the encoders, CLIP (0) and T5 (1), of each prompt."""
        states_BLD = replaced_rows(self.states_BLD, empty.states_BLD, [1 in e for e in empty_for])
        pooled_BE = replaced_rows(self.pooled_BE, empty.pooled_BE, [0 in e for e in empty_for])
        return replace(self, states_BLD=states_BLD, pooled_BE=pooled_BE)


def pooled_states(
    encoder: Any, tokenizer: ClipTokenizer, forward: Callable[..., Any], prompts: Sequence[str]
) -> torch.Tensor:
    """Return CLIP's pooled states (B, E) of prompts, of which it reads the first 75 tokens."""
    ids_BL = tensor_on(
        [tokenizer.chunks(prompt)[0] for prompt in prompts], next(encoder.parameters()).device, torch.long
    )
    pooled_BE: torch.Tensor = forward(input_ids=ids_BL).pooler_output
    return pooled_BE
