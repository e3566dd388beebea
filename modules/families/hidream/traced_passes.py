"""The forward pass of HiDream I1, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.hidream.transformer import RoutedFeedForward
from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `HiDreamImageTransformer2DModel`; T5 and Llama read the tokens of a size."""
    config = transformer.config
    of_t5, of_llama = config.caption_channels
    num_layers = max(config.llama_layers) + 1
    for module in transformer.modules():
        if isinstance(module, RoutedFeedForward):
            module.is_traced = True

    def inputs(size: PassSize) -> dict[str, Any]:
        return {
            "hidden_states": torch.empty(size.batch, *spec.latents.shape(size.width_px, size.height_px)),
            "timesteps": torch.empty(size.batch, dtype=torch.float32),
            "encoder_hidden_states_t5": torch.empty(size.batch, size.tokens, of_t5),
            "encoder_hidden_states_llama3": torch.empty(num_layers, size.batch, size.tokens, of_llama),
            "pooled_embeds": torch.empty(size.batch, config.text_emb_dim),
        }

    text = frozenset({"encoder_hidden_states_t5", "encoder_hidden_states_llama3", "pooled_embeds"})
    return {"forward": TracedPass(transformer, inputs, text)}
