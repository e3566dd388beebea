"""The forward pass of Wuerstchen's prior, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def prior_passes(prior: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of the prior."""

    def inputs(size: PassSize) -> dict[str, Any]:
        return {
            "x": torch.empty(size.batch, *spec.latents.shape(size.width_px, size.height_px)),
            "r": torch.empty(size.batch, dtype=torch.float32),
            "c": torch.empty(size.batch, size.tokens, prior.config.c_cond),
        }

    return {"forward": TracedPass(prior, inputs, frozenset({"c"}))}
