"""What a loss weighting's record holds. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from modules.diffusion.process import NoiseProcess


@dataclass(frozen=True, slots=True)
class WeightingSpec:
    """A loss weighting. `help` is a sentence for its list, empty where there is nothing to explain.

    `weights(process, timesteps, gamma)` returns the factors of the losses at these timesteps, shape (B,), or None where
    all count alike; a weighting without the function is in old configs and not supported yet. `uses_gamma` says that
    the setting of that name matters to it.
    """

    name: str
    label: str
    weights: Callable[[NoiseProcess, torch.Tensor, float], torch.Tensor | None] | None = None
    help: str = ""
    uses_gamma: bool = False
