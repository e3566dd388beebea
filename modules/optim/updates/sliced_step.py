"""The sliced optimizer step: a few parameters at a time, so that the memory of a step is bounded.

The optimizer sees each slice as if those were all the parameters there are. Its state is keyed by parameter, however
the step is sliced, so a resumed run may use other slices and still ends the same. An optimizer whose step needs all
weights together (`OptimizerSpec.steps_at_once`) receives all of them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from modules.optim.param_groups import TrainGroup, steps_at_once
from modules.optim.updates.master_weights import MasterWeight
from modules.optim.updates.slicing import SLICE_WEIGHTS

# An optimizer step that changes nothing where a flag on the device is set, without the host waiting for the flag.
#
# Some optimizers read such a flag themselves (`OptimizerSpec.skips_on_device`). For any other, the weight and its state
# are copied before the step, and put back on the device where the flag is set. What an optimizer keeps on the host,
# such as a count of steps, cannot follow a flag there: `SkippedStep` restores it once the flag has been read, after the
# step.
#
# The copies cost memory traffic: each array is read and written twice more. A wait costs more than its few
# microseconds: while the host waits, it cannot enqueue the kernels of the rest of the backward pass, so the device
# idles after each weight until the host has caught up. Where the step waits anyway (`OptimizerSpec.waits_per_weight`),
# the copies would save nothing, and the caller reads the flag instead.

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


def reads_flag(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Return whether an optimizer's step reads the flag on a device itself.

    Torch's fused steps on Apple's GPUs took it and ignored it (pytorch/pytorch pull request 186360).
    """
    return device.type != "mps" and all(g.get("skips_on_device", False) for g in optimizer.param_groups)


def step_unless(
    is_skipped: torch.Tensor, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]
) -> SkippedStep | None:
    """Take a step of the optimizer on these parameters, which has no effect where a flag is set.

    `is_skipped` is of shape (), on the device of the parameters, which must have state already if they ever will.
    Returns what the optimizer keeps on the host, if anything.
    """
    if reads_flag(optimizer, is_skipped.device):
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


Names = Mapping[str, Sequence[str]]
Generators = Callable[[str], torch.Generator | None]


class StepHooks(Protocol):
    """Hooks right before parameters are updated, with their gradients in place, and right after."""

    def before_update(self, unit: str, parameters: Sequence[nn.Parameter]) -> None:
        """Called before each update of some of a unit's parameters, as the optimizer sees them."""
        ...

    def after_update(self, unit: str) -> None:
        """Called after the update."""
        ...


class SlicedStep:
    """Runs an optimizer's step on chosen parameters."""

    def __init__(self, groups: Iterable[TrainGroup], optimizer: torch.optim.Optimizer, hooks: StepHooks) -> None:
        self._groups = {g.name: g for g in groups}
        self._optimizer = optimizer
        self._hooks = hooks
        self._divided = _divided_units(optimizer)
        self.waits_per_weight = any(group.get("waits_per_weight", False) for group in optimizer.param_groups)
        """Whether the optimizer's step makes the host wait for the device at each weight."""

    def step(
        self,
        names: Names,
        generators: Generators,
        clip: Callable[[Sequence[nn.Parameter]], None] | None = None,
        is_skipped: torch.Tensor | None = None,
    ) -> SkippedStep | None:
        """Update parameters by their gradients in one optimizer step; master weights are filled for it and released
        afterwards.

        `generators(name)` returns the generator for the stochastic rounding of a parameter, so that its random numbers
        do not depend on the order of updates; `clip` may change the gradients, in float32, right before. With a flag
        `is_skipped`, of shape () on the parameters' device, the weights and their state do not change where it is set;
        returns what restores the state on the host once the flag can be read (see `step_unless`).
        """
        # Iterate over the given names only: the fused backward pass calls this for each weight.
        by_unit = {unit: self._groups[unit].master_weights for unit in names}
        master_weights = {n: by_unit[unit][n] for unit, some in names.items() for n in some if n in by_unit[unit]}
        for master_weight in master_weights.values():
            master_weight.fill()
        updated = {unit: [self._parameter(unit, n) for n in some] for unit, some in names.items()}
        if clip is not None:
            clip([p for parameters in updated.values() for p in parameters])
        for unit, parameters in updated.items():
            self._hooks.before_update(unit, parameters)
        skipped = self._run_optimizer(updated, is_skipped)
        for unit in updated:
            self._hooks.after_update(unit)
        for name, master_weight in master_weights.items():
            master_weight.write_back(generators(name) if master_weight.rounding == "stochastic" else None)
            master_weight.release()
        return skipped

    def has_state(self, unit: str, name: str) -> bool:
        """Return whether the optimizer has state for a parameter."""
        return bool(self._optimizer.state.get(self._parameter(unit, name)))

    def put_back(self, skipped: SkippedStep) -> None:
        """Restore what the optimizer keeps on the host from before a step, if that was skipped."""
        skipped.put_back(self._optimizer)

    def _parameter(self, unit: str, name: str) -> nn.Parameter:
        group = self._groups[unit]
        return group.master_weights[name].master if name in group.master_weights else group.parameters[name]

    def _run_optimizer(
        self, updated: Mapping[str, list[nn.Parameter]], is_skipped: torch.Tensor | None
    ) -> SkippedStep | None:
        """Run the optimizer's step with groups that hold only these parameters.

        A group without any stays, empty: state that an optimizer keeps in its groups must be the same in all of them.
        """
        optimizer = self._optimizer
        everything = [g["params"] for g in optimizer.param_groups]
        for group in optimizer.param_groups:
            of_unit = updated.get(group["unit"], [])
            selected = self._divided.get((group["unit"], group["number"]))
            group["params"] = of_unit if selected is None else [p for p in of_unit if id(p) in selected]
        try:
            if is_skipped is not None:
                return step_unless(is_skipped, optimizer, [p for some in updated.values() for p in some])
            optimizer.step()
            return None
        finally:
            for group, parameters in zip(optimizer.param_groups, everything, strict=True):
                group["params"] = parameters


def _divided_units(optimizer: torch.optim.Optimizer) -> dict[tuple[str, int], frozenset[int]]:
    """Return the ids of the parameters in each optimizer group, by unit and number, for units with several groups.

    The only group of any other unit has all of its parameters.
    """
    numbers = Counter(g["unit"] for g in optimizer.param_groups)
    return {
        (g["unit"], g["number"]): frozenset(map(id, g["params"]))
        for g in optimizer.param_groups
        if numbers[g["unit"]] > 1
    }


def slices(groups: Iterable[TrainGroup], optimizer: torch.optim.Optimizer) -> Iterator[dict[str, list[str]]]:
    """Yield slices: the names, by unit, of the parameters with gradients that one optimizer step updates together.

    float32 parameters form one slice, 16-bit parameters slices of at most `SLICE_WEIGHTS`. There is a single slice
    where the optimizer's step needs all weights together.
    """
    groups = list(groups)
    if steps_at_once(optimizer):
        yield from _everything(groups)
        return
    plain = {
        g.name: [n for n, p in g.parameters.items() if n not in g.master_weights and p.grad is not None] for g in groups
    }
    if any(plain.values()):
        yield {unit: names for unit, names in plain.items() if names}
    taken: dict[str, list[str]] = {}
    num_weights = 0
    for group in groups:
        for name, master_weight in group.master_weights.items():
            if not master_weight.has_gradient:
                continue
            size = master_weight.weight.numel()
            if taken and num_weights + size > SLICE_WEIGHTS:
                yield taken
                taken, num_weights = {}, 0
            taken.setdefault(group.name, []).append(name)
            num_weights += size
    if taken:
        yield taken


def _everything(groups: Iterable[TrainGroup]) -> Iterator[dict[str, list[str]]]:
    """Yield one slice of all parameters with gradients; none where there are no gradients."""
    holders = {g.name: zip(g.parameters, gradient_holders(g), strict=True) for g in groups}
    names = {unit: [n for n, p in pairs if p.grad is not None] for unit, pairs in holders.items()}
    if any(names.values()):
        yield {unit: some for unit, some in names.items() if some}


def total_norm(group: TrainGroup) -> torch.Tensor | None:
    """Return the norm of all of a group's gradients, computed in float32, of shape (); None where there are none."""
    gradients = [g for p in gradient_holders(group) if (g := p.grad) is not None]
    if not gradients:
        return None
    if {g.dtype for g in gradients} == {torch.float32}:
        norm: torch.Tensor = torch.nn.utils.get_total_norm(gradients)
        return norm
    return norm_of([gradient_norm(g) for g in gradients])


def norm_of(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the total norm of tensors with these norms (at least one), on the device of the first, shape ()."""
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    return norm


def is_broken(loss: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Return whether a loss or a norm is not finite, of shape (): zero times infinity is NaN, in few kernels."""
    zero = loss * 0.0
    return torch.addcmul(zero, norm, zero).isnan()


def gradient_norm(gradient: torch.Tensor) -> torch.Tensor:
    """Return the norm of a gradient, computed in float32, of shape ()."""
    norm: torch.Tensor = torch.linalg.vector_norm(gradient.detach().float())
    return norm


@contextlib.contextmanager
def gradients_in_groups(optimizer: torch.optim.Optimizer, groups: Mapping[str, TrainGroup]) -> Iterator[None]:
    """Return a context in which an optimizer's groups have the tensors that hold the gradients, for a loss scaler."""
    kept = {(g["unit"], g["number"]): g["params"] for g in optimizer.param_groups}
    for group in optimizer.param_groups:
        # The first group of a unit gets all of them, so that each gradient is unscaled once.
        group["params"] = gradient_holders(groups[group["unit"]]) if group["number"] == 0 else []
    try:
        yield
    finally:
        for group in optimizer.param_groups:
            group["params"] = kept[group["unit"], group["number"]]


def gradient_holders(group: TrainGroup) -> list[nn.Parameter]:
    """Return the tensors that hold the gradients of a group, in the order of its parameters: a master weight where the
    gradient was moved there, else the weight.
    """
    if not group.master_weights:
        return list(group.parameters.values())
    return [_holder(group.master_weights.get(n), p) for n, p in group.parameters.items()]


def _holder(master_weight: MasterWeight | None, parameter: nn.Parameter) -> nn.Parameter:
    return master_weight.master if master_weight is not None and master_weight.master.grad is not None else parameter
