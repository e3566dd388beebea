"""Changes of the norm of weights after a step: a limit for LoRA layers, and constant norms for embeddings.

The limit is max-norm regularization (Srebro and Shraibman 2005), `scale_weight_norms` of sd-scripts: where the norm of
a layer's change of the model, `alpha / rank * B A`, exceeds the limit, A and B are both multiplied by the root of the
ratio. The state of the optimizer stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from modules.optim.param_groups import TrainGroup, exact_parameters


@dataclass(frozen=True, eq=False)
class LoraWeights:
    """A layer of a training unit: its exact weights A, (rank, in, ...), and B, (out, rank, ...), and alpha by rank."""

    group: TrainGroup
    down: torch.Tensor
    up: torch.Tensor
    scale: float

    @property
    def kind(self) -> tuple[torch.Size, torch.Size, torch.device]:
        """The key of layers whose norms are computed together."""
        return self.down.shape, self.up.shape, self.down.device


class NormLimit:
    """LoRA layers, and the largest norm that each of them may have."""

    def __init__(self, layers: Sequence[LoraWeights], limit: float) -> None:
        self._layers = layers
        self._limit = limit

    @torch.no_grad()
    def apply(self) -> dict[str, float]:
        """Scale the layers with a larger norm down to the limit, and return the metrics.

        The metrics are the number of scaled layers, and the mean norm of all layers afterwards. Layers of frozen units
        stay as they are. Synchronizes with the device once.
        """
        layers = [layer for layer in self._layers if layer.group.is_training]
        if not layers:
            return {}
        norms = _norms(layers)
        roots = [(self._limit / norm) ** 0.5 if norm > self._limit else 1.0 for norm in norms]
        scaled = [(layer, root) for layer, root in zip(layers, roots, strict=True) if root < 1.0]
        for layer, root in scaled:
            layer.down.mul_(root)
            layer.up.mul_(root)
        if scaled:
            _write_back([layer for layer, _ in scaled])
        return {
            "scaled_layers": float(len(scaled)),
            "weight_norm": sum(min(n, self._limit) for n in norms) / len(norms),
        }


def _norms(layers: Sequence[LoraWeights]) -> list[float]:
    """Return the Frobenius norms of `scale * B A`: of `B A` it is the root of `sum((B^T B) * (A A^T))`.

    So no product of the size of the model's weight is computed. Layers of equal shapes are computed together.
    """
    kinds: dict[object, list[int]] = {}
    for number, layer in enumerate(layers):
        kinds.setdefault(layer.kind, []).append(number)
    squares = []
    for numbers in kinds.values():
        downs = torch.stack([layers[n].down.float().flatten(1) for n in numbers])
        ups = torch.stack([layers[n].up.float().flatten(1) for n in numbers])
        squares.append(((ups.mT @ ups) * (downs @ downs.mT)).sum(dim=(1, 2)))
    device = squares[0].device
    norms = torch.cat([s.to(device) for s in squares]).clamp(min=0.0).sqrt().tolist()
    order = [n for numbers in kinds.values() for n in numbers]
    return [norm * abs(layers[n].scale) for n, norm in sorted(zip(order, norms, strict=True))]


def _write_back(layers: Sequence[LoraWeights]) -> None:
    """Write master weights that were scaled to the low-precision weights of the model."""
    changed = {id(weight) for layer in layers for weight in (layer.down, layer.up)}
    groups: dict[int, TrainGroup] = {id(layer.group): layer.group for layer in layers}
    for group in groups.values():
        for master_weight in group.master_weights.values():
            parameter: nn.Parameter = master_weight.exact
            if id(parameter) in changed and parameter is not master_weight.weight:
                master_weight.write_back()


# Keeps the norm of each row of embeddings after a step, as OneTrainer's "preserve embedding norm".


@dataclass(frozen=True, eq=False)
class RowNorms:
    """Training units of embeddings, and the norms of the rows of their parameters, by full name."""

    groups: Sequence[TrainGroup]
    norms: Mapping[str, float]

    @torch.no_grad()
    def apply(self) -> dict[str, float]:
        """Scale each row (D) of the units that are trained to its norm; rows of zeros stay. Returns no metrics."""
        for group in self.groups:
            if not group.is_training:
                continue
            for name, rows_ND in exact_parameters([group]).items():
                if name not in self.norms:
                    continue
                rows_ND.copy_(nn.functional.normalize(rows_ND.float(), dim=-1) * self.norms[name])
                master_weight = group.master_weights.get(name)
                if master_weight is not None and master_weight.exact is not master_weight.weight:
                    master_weight.write_back()
        return {}
