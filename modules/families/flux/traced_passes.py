"""The forward pass of FLUX.1, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.parts.traced_passes import packed_passes
from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `FluxTransformer2DModel`."""

    def pooled(size: PassSize, num_patches: int) -> dict[str, torch.Tensor]:
        return {"pooled_projections": torch.empty(size.batch, transformer.config.pooled_projection_dim)}

    return packed_passes(transformer, spec, num_axes=3, more=pooled)
