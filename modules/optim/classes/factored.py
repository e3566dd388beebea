"""Optimizers with a factored second moment: CAME and Adafactor.

CAME (Luo et al. 2023, arXiv 2307.02047, algorithm 2) keeps its running average of updates in 32 or in 8 bits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers.optimization import Adafactor


class Came(torch.optim.Optimizer):
    """CAME: Adafactor's factored second moment, an average of updates, and a confidence in it.

    Weights of two or more dimensions are factored along the last two. All state is per weight, and none counts steps.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        betas: tuple[float, float, float],
        eps: tuple[float, float],
        weight_decay: float,
        lr: float = 2e-4,
        use_cautious: bool = False,
        min_8bit_size: int | None = None,
        block_size: int = 2048,
    ) -> None:
        """`eps` are added to squared gradients and to squared deviations of updates.

        `use_cautious` skips the weights whose update points against the gradient (Liang et al. 2024, algorithm 2).
        Tensors of at least `min_8bit_size` elements keep their average of updates in 8 bits, with a scale for every
        `block_size` elements (Dettmers et al. 2022, section 2.1); without it, none do.
        """
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "use_cautious": use_cautious,
            "min_8bit_size": min_8bit_size,
            "block_size": block_size,
        }
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _update(parameter, parameter.grad, self.state[parameter], group)


def _update(parameter: nn.Parameter, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    beta1, beta2, beta3 = group["betas"]
    eps1, eps2 = group["eps"]
    lr = group["lr"]
    if group["weight_decay"]:
        parameter.mul_(1.0 - lr * group["weight_decay"])
    update = _over_root(state, "exp_avg_sq", gradient.square().add_(eps1), beta2).mul_(gradient)
    update.div_(update.square().mean().sqrt_().clamp_(min=1.0))  # the clip threshold of the paper, d = 1
    average = _average(parameter, state, group)
    average.lerp_(update, 1.0 - beta1)
    step = average
    if parameter.dim() >= 2:
        deviation = (update - average).square_().add_(eps2)
        step = _over_root(state, "exp_avg_res", deviation, beta3).mul_(average)
    if group["use_cautious"]:
        agrees = (step * gradient > 0).to(step.dtype)
        step = step * agrees.div_(agrees.mean().clamp_(min=1e-3))
    parameter.add_(step, alpha=-lr)
    _keep_average(average, state, group)


def _over_root(state: dict[str, Any], key: str, squares: torch.Tensor, beta: float) -> torch.Tensor:
    """Add squares to their running average and return one over its root; both are factored where there are rows.

    The average of a matrix is approximated from the averages of its rows and columns (Shazeer and Stern 2018, section
    3).
    """
    if squares.dim() < 2:
        return _update_average(state, key, squares, beta).rsqrt()
    of_rows = _update_average(state, f"{key}_row", squares.mean(dim=-1), beta)
    of_columns = _update_average(state, f"{key}_col", squares.mean(dim=-2), beta)
    row_factors = (of_rows / of_rows.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    return row_factors * of_columns.rsqrt().unsqueeze(-2)


def _update_average(state: dict[str, Any], key: str, values: torch.Tensor, beta: float) -> torch.Tensor:
    """Add values to their running average, which is part of the state, and return it."""
    if key not in state:
        state[key] = torch.zeros_like(values)
    average: torch.Tensor = state[key]
    return average.mul_(beta).add_(values, alpha=1.0 - beta)


def _is_8bit(size: int, group: dict[str, Any]) -> bool:
    return group["min_8bit_size"] is not None and size >= group["min_8bit_size"]


def _average(parameter: nn.Parameter, state: dict[str, Any], group: dict[str, Any]) -> torch.Tensor:
    """Return the running average of updates, of the weight's shape; in 32 bits it is the state itself."""
    if "exp_avg_codes" in state:
        import bitsandbytes.functional as quantization

        average: torch.Tensor = quantization.dequantize_blockwise(
            state["exp_avg_codes"], absmax=state["exp_avg_scales"], blocksize=group["block_size"]
        )
        return average.to(parameter.dtype)
    if "exp_avg" in state:
        kept: torch.Tensor = state["exp_avg"]
        return kept
    return torch.zeros_like(parameter)


def _keep_average(average: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if not _is_8bit(average.numel(), group):
        state["exp_avg"] = average
        return
    import bitsandbytes.functional as quantization

    codes, scales = quantization.quantize_blockwise(average, blocksize=group["block_size"])
    state["exp_avg_codes"], state["exp_avg_scales"] = codes, scales.absmax


class RelativeAdafactor(Adafactor):  # type: ignore[misc]  # transformers has no types
    """Adafactor of transformers (Shazeer and Stern 2018), which also reports the learning rate that it chooses itself.

    With `relative_step`, "chosen_rate" in a group is its current step size.
    """

    @staticmethod
    def _get_lr(param_group: dict[str, Any], param_state: dict[str, Any]) -> Any:
        """Return the learning rate of a weight: section 8 of the paper if it is relative, else the group's."""
        if param_group["relative_step"]:
            step = param_state["step"]
            highest = 1e-6 * step if param_group["warmup_init"] else 1e-2
            param_group["chosen_rate"] = min(highest, 1.0 / math.sqrt(step))  # before the scale of the weight
        return Adafactor._get_lr(param_group, param_state)
