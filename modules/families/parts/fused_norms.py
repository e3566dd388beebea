"""diffusers' RMS norms of a denoiser as one kernel of CUDA, where they compute in the dtype of their weights.

diffusers computes such a norm step by step: a cast to float32, a square, a mean and so on, about eight kernels forward
and twelve backward, and a copy in float32 that is saved for the backward pass. In a step of Z-Image that was two thirds
of the memory traffic outside of matrix products. Torch's own norm (`torch.nn.functional.rms_norm`) is one kernel in
each direction, which also computes in float32 but rounds only its result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from diffusers.models.normalization import RMSNorm
from torch import nn
from torch.nn.functional import rms_norm


class FusedRMSNorm(RMSNorm):  # type: ignore[misc]  # diffusers has no types
    """diffusers' norm, computed by torch's function, except under autocast and for inputs of another dtype."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the states (..., channels) divided by the root of their mean square, times the weight (channels)."""
        if hidden_states.dtype != self.weight.dtype or torch.is_autocast_enabled(hidden_states.device.type):
            plain: torch.Tensor = super().forward(hidden_states)
            return plain
        return rms_norm(hidden_states, tuple(self.dim), self.weight, self.eps)


def fuse_norms(module: nn.Module) -> None:
    """Let the RMS norms of a module use torch's own function, in place."""
    for norm in norms_to_fuse(module):
        # Only the class changes: weights, hooks and names stay, and compiled blocks of a kind still share their code.
        norm.__class__ = FusedRMSNorm


def norms_to_fuse(module: nn.Module) -> Iterator[Any]:
    """Yield diffusers' RMS norms in a module that have a weight and no bias."""
    norm: Any
    for norm in module.modules():
        if type(norm) is RMSNorm and norm.weight is not None and norm.bias is None:
            yield norm
