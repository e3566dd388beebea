"""The prompts of Anima: Qwen3's last states, read by a conditioner whose queries are T5's tokens.

Both read the plain prompt, without a template. An empty prompt has no states; a state of zeros stands for them, as in
diffusers' pipeline: without biases, the attention to zeros is zero, masked or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modules.families.anima.spec import MAX_TOKENS
from modules.families.parts.chat_tokens import ChatTokenizer
from modules.families.parts.t5_tokens import T5Tokenizer
from modules.system.devices import tensor_on


@dataclass(frozen=True)
class PromptTokenizers:
    """The tokenizers of Qwen3 and of T5."""

    qwen: ChatTokenizer
    t5: T5Tokenizer

    def ids(self, prompt: str) -> tuple[list[int], list[int]]:
        """Return the ids of a prompt: Qwen3's, and T5's with the end token."""
        return self.qwen.ids(prompt)[:MAX_TOKENS], self.t5.read(prompt, MAX_TOKENS)

    def identity(self) -> str:
        """Return everything that affects the ids of a prompt."""
        return f"{self.qwen.tokenizer.to_str()}|{self.t5.identity()}"


def qwen_states(encoder: Any, forward: Callable[..., Any], ids: Sequence[int]) -> torch.Tensor:
    """Return Qwen3's normed states (L, D) of a prompt's tokens: alone, so that they depend on no other prompt."""
    ids_1L = tensor_on([list(ids) or [0]], next(encoder.parameters()).device, torch.long)
    states_1LD: torch.Tensor = forward(input_ids=ids_1L).last_hidden_state
    return states_1LD[0] if ids else torch.zeros_like(states_1LD[0])


def condition(
    conditioner: Any, forward: Callable[..., Any], states: Sequence[torch.Tensor], ids: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Return the transformer's text (L, D) of prompts from their states (S, D') and the ids of T5's tokens (L).

    A frozen conditioner reads each prompt alone, so that its text depends on no other prompt, in a cache or not. A
    trained one reads all in one pass, in which padding is masked.
    """
    if torch.is_grad_enabled() and any(p.requires_grad for p in conditioner.parameters()):
        return _condition(conditioner, forward, states, ids)
    pairs = zip(states, ids, strict=True)
    return [text_LD for s_LD, one in pairs for text_LD in _condition(conditioner, forward, [s_LD], [one])]


def _condition(
    conditioner: Any, forward: Callable[..., Any], states: Sequence[torch.Tensor], ids: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    device = next(conditioner.parameters()).device
    dtype = next(conditioner.parameters()).dtype
    longest = max(map(len, ids))
    masks = {}
    if len(ids) > 1:
        masks = {
            "target_attention_mask": _mask([len(one) for one in ids], device),
            "source_attention_mask": _mask([len(s_LD) for s_LD in states], device),
        }
    text_BLD: torch.Tensor = forward(
        source_hidden_states=torch.nn.utils.rnn.pad_sequence([s.to(device, dtype) for s in states], batch_first=True),
        target_input_ids=tensor_on([[*one, *[0] * (longest - len(one))] for one in ids], device, torch.long),
        **masks,
    )
    return [text_LD[: len(one)] for text_LD, one in zip(text_BLD, ids, strict=True)]


def _mask(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    longest = max(lengths)
    return tensor_on([[1] * length + [0] * (longest - length) for length in lengths], device, torch.long)
