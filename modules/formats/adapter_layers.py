"""A layer of an adapter as files hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from modules.formats.adapter_names import DOWN, UP


@dataclass(frozen=True, eq=False)
class AdapterLayer:
    """The change of one layer of a model: its factors by kohya's names (`adapter_names`), and alpha.

    `part` is the part's name and `path` the layer's dotted name in it. `alpha` scales the product of the factors;
    None where the file has none. LoRA: down (rank, in, ...) and up (out, rank, ...), a strength of alpha / rank.
    """

    part: str
    path: str
    factors: Mapping[str, torch.Tensor]
    alpha: float | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the factors by their names."""
        return {name: tuple(factor.shape) for name, factor in self.factors.items()}

    @property
    def rank(self) -> int:
        """The rank of a LoRA layer, which is how many rows its down matrix has."""
        return int(self.factors[DOWN].shape[0])

    @property
    def lora_alpha(self) -> float:
        """The alpha of a LoRA layer; the rank without one, which is a strength of 1."""
        return float(self.rank) if self.alpha is None else self.alpha

    @property
    def scale(self) -> float:
        """The strength of a LoRA layer: alpha by rank, 1 without an alpha."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


def lora_layer(part: str, path: str, down: torch.Tensor, up: torch.Tensor, alpha: float | None) -> AdapterLayer:
    """Return a LoRA layer from its two matrices."""
    return AdapterLayer(part, path, {DOWN: down, UP: up}, alpha)
