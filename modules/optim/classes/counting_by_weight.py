"""pytorch-optimizer's optimizers, with a count of steps for each weight.

The library counts the calls of `step` in the parameter group. Here a step is several calls, each with some weights
(`sliced_step.py`), or one for each weight in a fused backward pass: such a count would run ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytorch_optimizer
import torch
from torch import nn

from modules.optim.updates.slicing import SLICE_WEIGHTS

Groups = list[dict[str, Any]]


def _counting_by_weight(kind: type[Any]) -> Callable[..., torch.optim.Optimizer]:
    class CountingByWeight(kind):  # type: ignore[misc]
        """Steps weights that have the same count together, as a separate group with that count."""

        param_groups: Groups
        state: dict[nn.Parameter, dict[str, Any]]

        @torch.no_grad()
        def step(self, closure: None = None) -> None:
            """Update all weights that have a gradient."""
            groups = self.param_groups
            try:
                for group in groups:
                    for count, parameters in _batches(group["params"], self.state):
                        self.param_groups = [{**group, "params": parameters, "step": count}]
                        super().step()
                        for parameter in parameters:  # after the step: the library fills an empty state only
                            self.state[parameter]["step"] = count + 1
            finally:
                self.param_groups = groups

    return CountingByWeight


adabelief = _counting_by_weight(pytorch_optimizer.AdaBelief)  # Zhuang et al. 2020, algorithm 2
adopt = _counting_by_weight(pytorch_optimizer.ADOPT)  # Taniguchi et al. 2024, algorithm 2
aida = _counting_by_weight(pytorch_optimizer.Aida)  # Zhang et al. 2022, algorithm 1
tiger = _counting_by_weight(pytorch_optimizer.Tiger)  # Su 2023
yogi = _counting_by_weight(pytorch_optimizer.Yogi)  # Zaheer et al. 2018, algorithm 2


def ademamix(groups: Groups, *, optim_bits: int, min_8bit_size: int, **options: Any) -> torch.optim.Optimizer:
    """Return AdEMAMix (Pagliardini et al. 2024, algorithm 1, without its warm-ups) with state in 32 or in 8 bits.

    With 8 bits, which are bitsandbytes', tensors with fewer than `min_8bit_size` elements have 32.
    """
    if optim_bits == 8:
        from bitsandbytes.optim.ademamix import AdEMAMix8bit

        in_8_bits: Callable[..., torch.optim.Optimizer] = AdEMAMix8bit
        return in_8_bits(groups, min_8bit_size=min_8bit_size, **options)
    return _counting_by_weight(pytorch_optimizer.AdEMAMix)(groups, weight_decouple=True, **options)


def _batches(parameters: list[nn.Parameter], state: Any) -> Iterator[tuple[int, list[nn.Parameter]]]:
    """Yield parameters with gradients and an equal count of steps, with that count, at most `SLICE_WEIGHTS` at once.

    The library updates a batch in a few large operations, with temporary copies of all of it.
    """
    batches: dict[int, list[nn.Parameter]] = {}
    for parameter in (p for p in parameters if p.grad is not None):
        count = state[parameter].get("step", 0) if parameter in state else 0
        batch = batches.setdefault(count, [])
        if batch and sum(p.numel() for p in batch) + parameter.numel() > SLICE_WEIGHTS:
            yield count, batch
            batch = batches[count] = []
        batch.append(parameter)
    yield from batches.items()
