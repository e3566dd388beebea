"""The prompts of HiDream I1: pooled states of two CLIPs, T5's states, and the states of all layers of Llama 3.1.

All four read up to the same number of tokens. The CLIPs have more positions than the usual 77; their pooled states
depend on no padding. T5 and Llama pad, with masks, and the transformer attends to the states of the padding
(`HiDreamImagePipeline`, 0.42).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from modules.families.parts.chat_text import ChatReader, ChatTemplate, Padding
from modules.families.parts.chat_tokens import ChatTokenizer
from modules.families.parts.clip_text import TextTower
from modules.families.parts.encoder_states import EncoderStates
from modules.system.devices import tensor_on
from modules.system.errors import DarkroomError

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")
"""CLIP-L, CLIP-G, T5 and Llama."""
CLIPS, T5, LLAMA = ENCODERS[:2], ENCODERS[2], ENCODERS[3]
_START, _END = "<|begin_of_text|>", "<|eot_id|>"


@dataclass(frozen=True, eq=False)
class HiDreamConditioning(EncoderStates):
    """T5's states (B, L, D), those of Llama's layers (B, layers, L, D), and the pooled states (B, E) of the CLIPs."""

    encoders: ClassVar[tuple[str, ...]] = ENCODERS

    def inputs(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return the transformer's inputs."""
        return {
            "encoder_hidden_states_t5": self.states[T5].to(dtype),
            "encoder_hidden_states_llama3": self.states[LLAMA].to(dtype).transpose(0, 1),
            "pooled_embeds": torch.cat([self.pooled[name] for name in CLIPS], dim=-1).to(dtype),
        }


def pooled_states(
    tower: TextTower, forward: Callable[..., Any], prompts: Sequence[str], max_tokens: int
) -> torch.Tensor:
    """Return a CLIP's pooled states (B, E) of prompts, each read alone up to `max_tokens`."""
    tokenizer, device = tower.tokenizer, next(tower.encoder.parameters()).device
    states = []
    for prompt in prompts:
        ids = [tokenizer.start_id, *tokenizer.ids(prompt)[: max_tokens - 2], tokenizer.end_id]
        states.append(forward(input_ids=tensor_on([ids], device, torch.long)).text_embeds)
    return torch.cat(states)


def llama_reader(encoder: Any, tokenizer: ChatTokenizer, max_tokens: int, *, num_read: int, width: int) -> ChatReader:
    """Return how Llama reads prompts: without a template, padded with the end of a turn, the states of all its layers.

    Raises DarkroomError for a language model of which the transformer cannot read `num_read` layers of a `width`.
    """
    num_layers, own_width = int(encoder.config.num_hidden_layers), int(encoder.config.hidden_size)
    if num_layers < num_read or own_width != width:
        raise DarkroomError(
            f"Text encoder 4 has {num_layers} layers of width {own_width}; the transformer reads {num_read} of width "
            f"{width}.",
            advice="Choose Llama 3.1 8B Instruct.",
        )
    template = ChatTemplate(_START, "")
    padding = Padding(tokenizer.id_of(_END))
    return ChatReader(encoder, tokenizer, template, max_tokens, tuple(range(1, num_layers + 1)), padding=padding)
