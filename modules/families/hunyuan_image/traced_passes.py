"""The forward pass of HunyuanImage 2.1, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `HunyuanImageTransformer2DModel`, for prompts without quoted text.

    With quoted text the number of tokens depends on the values of a mask, which a traced pass does not have.
    """
    config = transformer.config
    of_distilled = ("timestep_r", "guidance") if config.use_meanflow else ()

    def inputs(size: PassSize) -> dict[str, Any]:
        return {
            "hidden_states": torch.empty(size.batch, *spec.latents.shape(size.width_px, size.height_px)),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, config.text_embed_dim),
            "encoder_attention_mask": torch.empty(size.batch, size.tokens, dtype=torch.bool),
            **{name: torch.empty(size.batch, dtype=torch.float32) for name in of_distilled},
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states"}))}
