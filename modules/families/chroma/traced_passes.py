"""The forward pass of Chroma1, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.parts.traced_passes import packed_passes
from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `ChromaTransformer2DModel`, with the mask that prompts of several lengths need."""

    def mask(size: PassSize, num_patches: int) -> dict[str, torch.Tensor]:
        return {"attention_mask": torch.empty(size.batch, size.tokens + num_patches, dtype=torch.bool)}

    return packed_passes(transformer, spec, num_axes=3, more=mask)
