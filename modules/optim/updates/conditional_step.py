"""An optimizer step that changes nothing where a flag on the device is set, without the host waiting for the flag.

Some optimizers read such a flag themselves (`OptimizerSpec.skips_on_device`). For any other, the weight and its state
are copied before the step, and put back on the device where the flag is set. What an optimizer keeps on the host, such
as a count of steps, cannot follow a flag there: `SkippedStep` restores it once the flag has been read, after the step.

The copies cost memory traffic: each array is read and written twice more. A wait costs more than its few microseconds:
while the host waits, it cannot enqueue the kernels of the rest of the backward pass, so the device idles after each
weight until the host has caught up. Where the step waits anyway (`OptimizerSpec.waits_per_weight`), the copies would
save nothing, and the caller reads the flag instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_FLAG = "found_inf"  # torch's name for it, a float: 1 where the step is to be skipped


@dataclass(frozen=True, eq=False)
class SkippedStep:
    """The state that an optimizer kept on the host before a step; `is_skipped` is the step's flag, of shape ()."""

    is_skipped: torch.Tensor
    values: Mapping[nn.Parameter, Mapping[str, Any]]

    def put_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Restore it if the step was skipped. Waits for the device."""
        if self.is_skipped.item():
            for parameter, values in self.values.items():
                optimizer.state[parameter].update(values)


def step_unless(
    is_skipped: torch.Tensor, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]
) -> SkippedStep | None:
    """Take a step of the optimizer on these parameters, which has no effect where a flag is set.

    `is_skipped` is of shape (), on the device of the parameters, which must have state already if they ever will.
    Returns what the optimizer keeps on the host, if anything.
    """
    if optimizer.param_groups[0].get("skips_on_device", False):
        setattr(optimizer, _FLAG, is_skipped.float())
        try:
            optimizer.step()
        finally:
            delattr(optimizer, _FLAG)
        return None
    weights = [p.detach().clone() for p in parameters]
    on_device: list[dict[str, torch.Tensor]] = []
    on_host: dict[nn.Parameter, dict[str, Any]] = {}
    for parameter in parameters:
        on_device.append({})
        for key, value in optimizer.state.get(parameter, {}).items():
            is_tensor = isinstance(value, torch.Tensor)
            if is_tensor and value.device == is_skipped.device:
                on_device[-1][key] = value.clone()
            else:
                on_host.setdefault(parameter, {})[key] = value.clone() if is_tensor else value
    optimizer.step()
    for parameter, weight, state in zip(parameters, weights, on_device, strict=True):
        _restore_where(is_skipped, parameter.detach(), weight)
        for key, old in state.items():
            _restore_where(is_skipped, optimizer.state[parameter][key], old)
    return SkippedStep(is_skipped, on_host) if on_host else None


def _restore_where(is_skipped: torch.Tensor, value: torch.Tensor, old: torch.Tensor) -> None:
    torch.where(is_skipped, old, value, out=value)
