"""AdaGrad that creates its sums at the first step: a master weight may be empty between steps."""

from __future__ import annotations

from typing import Any

import torch


class LazyAdagrad(torch.optim.Adagrad):
    """torch's AdaGrad with the sums of squared gradients created at the first step instead of in the constructor."""

    def __init__(self, groups: list[dict[str, Any]], *, initial_accumulator_value: float, **options: Any) -> None:
        """`options` are those of `torch.optim.Adagrad`."""
        super().__init__(groups, initial_accumulator_value=initial_accumulator_value, **options)
        self.state.clear()
        self.register_step_pre_hook(lambda *_: self._make_missing_sums(initial_accumulator_value))

    def _make_missing_sums(self, first: float) -> None:
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            if not self.state[parameter]:
                self.state[parameter] = {"step": torch.tensor(0.0), "sum": torch.full_like(parameter, first)}
