"""Keeps the norm of each row of embeddings after a step, as OneTrainer's "preserve embedding norm"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from modules.optim.param_groups import TrainGroup, kept_parameters


@dataclass(frozen=True, eq=False)
class KeptNorms:
    """Training units of embeddings, and the norms of the rows of their parameters, by full name."""

    groups: Sequence[TrainGroup]
    norms: Mapping[str, float]

    @torch.no_grad()
    def apply(self) -> dict[str, float]:
        """Scale each row (D) of the units that are trained to its norm; rows of zeros stay. Returns no metrics."""
        for group in self.groups:
            if not group.is_training:
                continue
            for name, rows_ND in kept_parameters([group]).items():
                if name not in self.norms:
                    continue
                rows_ND.copy_(nn.functional.normalize(rows_ND.float(), dim=-1) * self.norms[name])
                master_weight = group.master_weights.get(name)
                if master_weight is not None and master_weight.kept is not master_weight.weight:
                    master_weight.give_value()
        return {}
