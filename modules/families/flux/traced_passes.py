"""The forward pass of FLUX.1, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.families.parts.traced_passes import packed_passes
from modules.families.spec import FamilySpec
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `FluxTransformer2DModel`."""
    return packed_passes(transformer, spec, num_axes=3)
