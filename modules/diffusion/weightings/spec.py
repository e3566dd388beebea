"""The record of a loss weighting. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from modules.diffusion.process import NoiseProcess

LEAST_SNR = 1e-8  # the least SNR that formulas divide by, for an epsilon model at zero terminal SNR


@dataclass(frozen=True, slots=True)
class WeightingSpec:
    """A loss weighting. `help` is a sentence for its list, empty where none is needed.

    `weights(process, timesteps, gamma)` returns the loss weights of these timesteps, shape (B,), or None where all are
    equal. They are finite at every SNR, 0 included. `uses_gamma` marks a weighting that depends on the gamma setting,
    `kohya_gamma` names sd-scripts' key for it in a file's metadata, `kohya_flag` its key for the weighting itself.
    """

    name: str
    label: str
    weights: Callable[[NoiseProcess, torch.Tensor, float], torch.Tensor | None]
    help: str = ""
    uses_gamma: bool = False
    kohya_gamma: str = ""
    kohya_flag: str = ""
