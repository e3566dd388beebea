"""The attention of joint blocks with any implementation; diffusers' processors always use PyTorch's."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention_processor import Attention
from torch import nn

from modules.families.attention import ATTENTIONS
from modules.families.parts.attention_processor import Kernel
from modules.system.factories import load_factory


class JointProcessor:
    """diffusers' `JointAttnProcessor2_0` with any kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        *_: object,
        **__: object,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the attention of an image's states (B, tokens, channels), and of a text's, to both."""
        image = (attn.to_q, attn.to_k, attn.to_v, attn.norm_q, attn.norm_k)
        projected = _project(attn, hidden_states, *image)
        if encoder_hidden_states is not None:
            text = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj, attn.norm_added_q, attn.norm_added_k)
            of_text = _project(attn, encoder_hidden_states, *text)
            projected = tuple(torch.cat(pair, dim=2) for pair in zip(projected, of_text, strict=True))
        query, key, value = projected
        states = self.kernel(query, key, value).transpose(1, 2).flatten(2).to(query.dtype)
        num_image_tokens = hidden_states.shape[1]
        image_states: torch.Tensor = attn.to_out[1](attn.to_out[0](states[:, :num_image_tokens]))
        if encoder_hidden_states is None:
            return image_states
        text_states = states[:, num_image_tokens:]
        return image_states, text_states if attn.context_pre_only else attn.to_add_out(text_states)


def _project(
    attn: Any, states: torch.Tensor, to_q: nn.Module, to_k: nn.Module, to_v: nn.Module, norm_q: Any, norm_k: Any
) -> tuple[torch.Tensor, ...]:
    """Return the queries, keys and values (B, heads, tokens, channels) of states."""
    query, key, value = (layer(states).unflatten(-1, (attn.heads, -1)).transpose(1, 2) for layer in (to_q, to_k, to_v))
    return (query if norm_q is None else norm_q(query), key if norm_k is None else norm_k(key), value)


def set_joint_processors(transformer: nn.Module, name: str) -> None:
    """Give every attention layer of a transformer of joint blocks a processor with an implementation's kernel."""
    kernel: Kernel = load_factory(ATTENTIONS[name].kernel)
    for module in transformer.modules():
        if isinstance(module, Attention):
            module.set_processor(JointProcessor(kernel))
