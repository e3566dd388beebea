"""An optimizer step that takes effect only where a flag on the device is set, without the host waiting for the flag.

Some optimizers read such a flag themselves (`OptimizerSpec.skips_on_device`). For any other, the weight and its state
are copied before the step, and put back on the device where the flag is not set. What an optimizer keeps on the host,
such as a count of steps, cannot follow a flag there: `Skipped` restores it once the flag has been read, after the step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_FLAG = "found_inf"  # torch's name for it, a float: 1 where the step is to be skipped


@dataclass(frozen=True, eq=False)
class Skipped:
    """The state that an optimizer kept on the host before a step; `was_taken` is the step's flag, of shape ()."""

    was_taken: torch.Tensor
    values: Mapping[nn.Parameter, Mapping[str, Any]]

    def put_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Restore it if the step was skipped. Waits for the device."""
        if not self.was_taken.item():
            for parameter, values in self.values.items():
                optimizer.state[parameter].update(values)


@contextlib.contextmanager
def taking_effect_if(
    is_taken: torch.Tensor, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]
) -> Iterator[Skipped | None]:
    """Let a step of the optimizer within the context take effect on these parameters where a flag is set.

    `is_taken` is of shape (), on the device of the parameters, which must have state already if they ever will. Yields
    what the optimizer keeps on the host, if anything.
    """
    if _reads_the_flag(optimizer):
        setattr(optimizer, _FLAG, (~is_taken).float())
        try:
            yield None
        finally:
            delattr(optimizer, _FLAG)
        return
    states = {p: optimizer.state[p] for p in parameters if p in optimizer.state}
    on_host = {p: {k: _copied(v) for k, v in s.items() if _is_on_host(v, is_taken)} for p, s in states.items()}
    on_device = {p: {k: v.clone() for k, v in s.items() if k not in on_host[p]} for p, s in states.items()}
    weights = {p: p.detach().clone() for p in parameters}
    yield Skipped(is_taken, on_host) if any(on_host.values()) else None
    for parameter in parameters:
        _keep_if(is_taken, parameter.data, weights[parameter])
        for key, old in on_device.get(parameter, {}).items():
            _keep_if(is_taken, optimizer.state[parameter][key], old)


def _reads_the_flag(optimizer: torch.optim.Optimizer) -> bool:
    return all(group.get("skips_on_device", False) for group in optimizer.param_groups)


def _is_on_host(value: object, flag: torch.Tensor) -> bool:
    return not isinstance(value, torch.Tensor) or value.device != flag.device


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _keep_if(is_taken: torch.Tensor, value: torch.Tensor, old: torch.Tensor) -> None:
    torch.where(is_taken, value, old, out=value)
