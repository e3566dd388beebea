"""The network of the prior (stage C), with an exact embedding of the time."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from diffusers.models.attention_processor import AttnProcessor2_0
from diffusers.pipelines.deprecated.wuerstchen import modeling_wuerstchen_prior

from modules.families.parts.effnet_autoencoder import without_dropout
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.spec import FamilySpec


class WuerstchenPrior(modeling_wuerstchen_prior.WuerstchenPrior):  # type: ignore[misc]  # diffusers has no types
    """diffusers' module, with the same configs and tensors, which embeds the time in float32 whatever its dtype.

    Its largest angle is 10,000 times the time, which bfloat16 rounds by up to 20. It has no dropout, and attention
    without a matrix of all tokens by all tokens.
    """

    # diffusers reads the names of the config in the signature.
    @wraps(modeling_wuerstchen_prior.WuerstchenPrior.__init__)  # type: ignore[misc]  # diffusers has no types
    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        without_dropout(self)
        self.set_attn_processor(AttnProcessor2_0())

    def gen_r_embedding(self, r: torch.Tensor, max_positions: int = 10000) -> torch.Tensor:
        """Return the embedding (B, D) of times in [0, 1], in the dtype of the weights."""
        embedding: torch.Tensor = super().gen_r_embedding(r.float(), max_positions)
        return embedding.to(next(self.parameters()).dtype)


# The forward pass of Wuerstchen's prior, for the memory estimate to trace.


def prior_passes(prior: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of the prior."""

    def inputs(size: InputSize) -> dict[str, Any]:
        return {"x": size.latents(size.channels), "r": size.times(), "c": size.text(prior.config.c_cond)}

    return forward_pass(prior, spec, inputs, text=["c"])
