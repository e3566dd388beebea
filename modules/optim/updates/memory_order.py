"""Steps of optimizers that read memory in order: bitsandbytes' kernels, and the factored state of adv-optm.

They pair a weight with its gradient and its state by their places in memory. A convolution's weight may have its
channels innermost, and its state would then belong to other weights, or the step would fail.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from modules.optim.param_groups import in_layout_of


def step_in_order(optimizer: torch.optim.Optimizer) -> None:
    """Make weights and gradients contiguous during each step of an optimizer; afterwards weights have their layout
    again. State that the step creates is contiguous. No second copy of a weight stays.
    """
    layouts: list[tuple[nn.Parameter, torch.Tensor]] = []

    def before(*_: Any) -> None:
        layouts.clear()
        for parameter in (p for g in optimizer.param_groups for p in g["params"] if p.grad is not None):
            if not parameter.is_contiguous():
                layouts.append((parameter, torch.empty_like(parameter, device="meta")))
                parameter.data = parameter.data.contiguous()
            parameter.grad = parameter.grad.contiguous()

    def after(*_: Any) -> None:
        for parameter, layout in layouts:
            parameter.data = in_layout_of(layout, parameter.data)
        layouts.clear()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
