"""Training units: groups of parameters that are trained and frozen together, each with its own learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from modules.optim.rates import EffectiveRate
from modules.optim.updates.master_weights import MasterWeight, Rounding
from modules.settings.every import Every

NEVER = Every()

_GROUP = "group "  # no parameter's full name starts with this


@dataclass(eq=False)
class TrainGroup:
    """A training unit: parameters, by full name, with their learning rate and the span they train for.

    Learning rates, gradient norms and events use its `name`: the name of a part of the model, or another one. `part` is
    the part that contains it, if any; a part may contain several units. `label` is its name in the window. A frozen
    unit stays frozen. `module` holds the parameters, and is in training mode as long as they are trained. The optimizer
    updates `master_weights` in place of 16-bit parameters; `hooks` are the hooks on the parameters. `rate_ratios` are
    the ratios of parameters' learning rates to the unit's, by full name, where they are not 1 (LoRA+). With
    `is_sharded` the parameters are this process's own rows of weights that several processes shard.
    `is_in_every_batch`: a batch without a gradient for it is an error; not for an embedding, which only gets one from
    the captions that contain it. `fixed()` returns tensors that are trained along with the parameters, and that no file
    of the model has: backups contain them.
    """

    name: str
    parameters: dict[str, nn.Parameter]
    learning_rate: float
    is_training: bool = True
    module: nn.Module | None = None
    part: str | None = None
    label: str = ""
    stop_after: Every = NEVER
    master_weights: dict[str, MasterWeight] = field(default_factory=dict)
    hooks: list[RemovableHandle] = field(default_factory=list)
    rate_ratios: Mapping[str, float] = field(default_factory=dict)
    is_in_every_batch: bool = True
    is_sharded: bool = False
    fixed: Callable[[], Mapping[str, torch.Tensor]] = dict

    def master_weight(self, rounding: Rounding) -> None:
        """Give every 16-bit parameter a master weight. The parameters must be on their training device already."""
        self.master_weights = {
            n: MasterWeight.of(p, rounding) for n, p in self.parameters.items() if p.dtype.itemsize == 2
        }


class OptionsOf(Protocol):
    """Returns the options of a weight's optimizer group that differ from the options of the whole optimizer (Muon).

    All values must be hashable. The key "rate" is not passed on: it is the group's learning rate, which follows the
    schedule, in place of the unit's.
    """

    def __call__(self, group: TrainGroup, name: str, parameter: nn.Parameter) -> Mapping[str, Hashable]: ...


def _no_options(group: TrainGroup, name: str, parameter: nn.Parameter) -> Mapping[str, Hashable]:
    return {}


def optimizer_groups(groups: Iterable[TrainGroup], options_of: OptionsOf = _no_options) -> list[dict[str, Any]]:
    """Return the groups in the form that torch's optimizers expect, one for each unit.

    A unit whose weights differ in their rates or options is several groups, in the order of its weights. "unit" is the
    unit's name, "number" counts its groups; `rate_of` needs "rate_ratio" and "own_rate".
    """
    return [
        {
            "params": parameters,
            "lr": (g.learning_rate if rate is None else rate) * ratio,
            "unit": g.name,
            "number": number,
            "rate_ratio": ratio,
            "own_rate": rate,
            **dict(options),
        }
        for g in groups
        for number, ((ratio, rate, options), parameters) in enumerate(_divide_parameters(g, options_of).items())
    ]


def rate_of(optimizer_group: Mapping[str, Any], learning_rate: float) -> float:
    """Return the learning rate of one of a unit's groups, before the schedule, from the unit's."""
    rate = optimizer_group["own_rate"]
    return float((learning_rate if rate is None else rate) * optimizer_group["rate_ratio"])


def set_learning_rates(
    optimizer: torch.optim.Optimizer, units: Mapping[str, TrainGroup], factor: float
) -> dict[str, float]:
    """Set the learning rates of an optimizer's groups for a step, and return the rates of its units.

    `factor` is the schedule's. A rate that is a tensor, which a CUDA graph reads, stays that tensor.
    """
    rates = {}
    for group in optimizer.param_groups:
        unit = units[group["unit"]]
        rates[unit.name] = unit.learning_rate * factor
        rate = rate_of(group, unit.learning_rate) * factor
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    return rates


_Division = tuple[float, float | None, tuple[tuple[str, Hashable], ...]]


def _divide_parameters(group: TrainGroup, options_of: OptionsOf) -> dict[_Division, list[nn.Parameter]]:
    """Return the parameters that the optimizer updates for a unit, by ratio of the rate, own rate, and options."""
    divided: dict[_Division, list[nn.Parameter]] = {}
    for name, updated in optimizer_parameters([group]).items():
        options = dict(options_of(group, name, group.parameters[name]))
        rate = options.pop("rate", None)
        assert rate is None or isinstance(rate, float)
        key = (group.rate_ratios.get(name, 1.0), rate, tuple(sorted(options.items(), key=lambda item: item[0])))
        divided.setdefault(key, []).append(updated)
    return divided


def freeze(group: TrainGroup, optimizer: torch.optim.Optimizer) -> None:
    """Stop training a group: no more gradients, no more dropout, and its optimizer state is freed.

    The parameters keep their values; so does the float32 master weight of a 16-bit parameter, which later saves and
    backups need. Forward passes that use them still run, checkpointed or not: non-reentrant
    checkpointing does not require that anything inside needs a gradient.
    """
    group.is_training = False
    if group.module is not None:
        group.module.eval()  # otherwise the adapter's dropout would still change the output
    for hook in group.hooks:
        hook.remove()
    group.hooks.clear()
    for parameter in group.parameters.values():
        parameter.requires_grad_(False)
        parameter.grad = None
        optimizer.state.pop(parameter, None)
    for master_weight in group.master_weights.values():
        master_weight.master.requires_grad_(False)
        master_weight.master.grad = None
        optimizer.state.pop(master_weight.master, None)
    group.master_weights = {n: m for n, m in group.master_weights.items() if m.exact is m.master}
    optimizer.param_groups[:] = [g for g in optimizer.param_groups if g.get("unit") != group.name]


def steps_at_once(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer must step all weights at once (`build_optimizer` writes it to each group)."""
    return any(group.get("steps_at_once", False) for group in optimizer.param_groups)


def named_parameters(groups: Iterable[TrainGroup]) -> dict[str, nn.Parameter]:
    """Return the model's own parameters of all groups, frozen ones included, by full name."""
    return {name: p for g in groups for name, p in g.parameters.items()}


def optimizer_parameters(groups: Iterable[TrainGroup]) -> dict[str, nn.Parameter]:
    """Return, by the same names, the parameters that the optimizer updates: master weights where there are any."""
    return {
        n: g.master_weights[n].master if n in g.master_weights else p for g in groups for n, p in g.parameters.items()
    }


def exact_parameters(groups: Iterable[TrainGroup]) -> dict[str, nn.Parameter]:
    """Return, by the same names, the parameters that hold the exact values between steps, for backups and EMA."""
    return {
        n: g.master_weights[n].exact if n in g.master_weights else p for g in groups for n, p in g.parameters.items()
    }


def fixed_tensors(groups: Iterable[TrainGroup]) -> dict[str, torch.Tensor]:
    """Return the tensors that are trained along with the parameters of all groups, as they are now, by full name.

    Moving a part to another device replaces its tensors.
    """
    return {name: tensor for g in groups for name, tensor in g.fixed().items()}


def optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the optimizer's state as tensors and as plain values, both keyed "parameter name|state name".

    State kept in parameter groups (`OptimizerSpec.group_state`) is among the values, keyed "group unit|state name", or
    "group unit number|state name" from the second group of a unit on.
    """
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            (tensors if isinstance(value, torch.Tensor) else values)[f"{name}|{key}"] = value
    for owner, group in _groups_by_owner(optimizer).items():
        values |= {f"{owner}|{key}": group[key] for key in group["group_state"] if key in group}
    return tensors, values


def restore_optimizer_state(
    optimizer: torch.optim.Optimizer,
    groups: Iterable[TrainGroup],
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, Any],
) -> None:
    """Load the state that `optimizer_state` returned, each tensor on the device and in the memory layout that the step
    of its parameter needs.

    Some steps, such as torch's fused ones, pair a weight and its state by their places in memory, which a file does not
    contain. The state of an optimizer group that is no longer trained is skipped. Raises KeyError where
    the state names a parameter that does not exist.
    """
    groups = list(groups)
    counts_on_device = {id(p) for g in optimizer.param_groups if g.get("fused") for p in g["params"]}
    in_order = {id(p) for g in optimizer.param_groups if g.get("reads_memory_in_order") for p in g["params"]}
    by_owner, parameters, weights = _groups_by_owner(optimizer), optimizer_parameters(groups), named_parameters(groups)
    for full, value in (*tensors.items(), *values.items()):
        name, key = full.rsplit("|", 1)
        if is_of_group(full):
            by_owner.get(name, {})[key] = value
            continue
        parameter = parameters[name]
        if isinstance(value, torch.Tensor):
            # A step count stays on the CPU, where torch keeps it unless the step is fused; all else goes to the
            # parameter's device.
            stays = value.dim() == 0 and id(parameter) not in counts_on_device
            value = value.clone() if stays else value.to(parameter.device)
            # A master weight may be empty between steps: its layout is its weight's.
            value = value if id(parameter) in in_order else in_layout_of(weights[name], value)
        optimizer.state.setdefault(parameter, {})[key] = value


def in_layout_of(weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the memory layout of a weight, if it has the weight's shape; otherwise as it is."""
    if value.shape != weight.shape or value.stride() == weight.stride():
        return value
    return torch.empty_like(weight, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)


def is_of_group(key: str) -> bool:
    """Return whether a key of an optimizer's state belongs to a whole group rather than to a parameter."""
    return key.startswith(_GROUP)


def _groups_by_owner(optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """Return the groups that keep state, by the first half of their state's keys."""
    return {_owner(g): g for g in optimizer.param_groups if g.get("group_state")}


def _owner(group: Mapping[str, Any]) -> str:
    """Return the first half of a group's keys; the first group of a unit has the name of the unit alone."""
    number = group.get("number", 0)
    return f"{_GROUP}{group['unit']}{f' {number}' if number else ''}"


def effective_rates(
    groups: Iterable[Mapping[str, Any]], effective_rate: EffectiveRate | None
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Return the effective learning rates of an optimizer's parameter groups by unit: known numbers, and tensors.

    The tensors, of shape (), are on an accelerator: reading one waits for it, so the step reads them together with its
    loss. Of several groups of a unit, the first that has a rate counts. Groups without a rate are left out.
    """
    numbers: dict[str, float] = {}
    tensors: dict[str, torch.Tensor] = {}
    if effective_rate is None:
        return {}, {}
    for group in groups:
        unit = str(group["unit"])
        if unit in numbers or unit in tensors:
            continue
        value = effective_rate(group)
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            tensors[unit] = value.detach().float().reshape(())
        elif value is not None:
            numbers[unit] = float(value)
    return {unit: rate for unit, rate in numbers.items() if math.isfinite(rate)}, tensors
