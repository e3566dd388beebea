"""Writing and reading the state of a run in a backup's folder: tensors as safetensors, the rest as JSON.

It contains no code and no random state: random numbers follow from the seed and the counters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from modules.config.codec import encode, load_file
from modules.config.schema import Config
from modules.formats.safetensors_io import read_safetensors, write_safetensors
from modules.memory.sharding import ShardedModule
from modules.optim.build import build_optimizer
from modules.optim.param_groups import (
    TrainGroup,
    exact_parameters,
    fixed_tensors,
    named_parameters,
    optimizer_parameters,
    optimizer_state,
    restore_optimizer_state,
)
from modules.optim.registry import optimizer_spec
from modules.optim.spec import OptimizerSettings
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from trainer.methods.protocol import TrainingMethod
from trainer.run_folder.shards import Kind, Rows, has_averages, key_of, read_whole, stored_in_shards, write_shards
from trainer.step.counters import Counters
from trainer.step.evaluation import optimizer_in_evaluation
from trainer.step.stepper import Stepper

_FIXED_FILE = "fixed.safetensors"  # only if the units have such tensors (`TrainGroup.fixed`)
_METHOD_FILE = "method.safetensors"  # only if the method has tensors, such as an unfinished rollout


@dataclass(frozen=True, slots=True)
class SavedState:
    """The state in a backup except its tensors."""

    counters: Counters
    num_threads: int
    plan: str
    method: dict[str, Any]
    scaler: dict[str, Any]
    optimizer_values: dict[str, Any]
    ema_updates: int
    validation: dict[str, Any] = field(default_factory=dict)
    rewards: dict[str, Any] = field(default_factory=dict)
    watchdog: dict[str, Any] | None = None  # None in backups of older versions


def write_state(
    folder: Path,
    *,
    config: Config,
    counters: Counters,
    num_threads: int,
    plan: str,
    groups: Sequence[TrainGroup],
    stepper: Stepper,
    method: TrainingMethod,
    validation: Mapping[str, Any],
    rewards: Mapping[str, Any],
) -> None:
    """Write everything a run needs to resume, except what its processes shard (`write_shards_of`).

    `plan` is the fingerprint of the images and their order.
    """
    whole = [g for g in groups if not g.is_sharded]
    write_safetensors(folder / "weights.safetensors", exact_parameters(whole), {})
    if fixed := fixed_tensors(groups):
        write_safetensors(folder / _FIXED_FILE, fixed, {})
    tensors, _ = optimizer_state(stepper.optimizer, optimizer_parameters(whole))
    _, values = optimizer_state(stepper.optimizer, optimizer_parameters(groups))
    write_safetensors(folder / "optimizer.safetensors", tensors, {})
    if stepper.ema is not None:
        averages = {name: stepper.ema.averages[name] for name in named_parameters(whole)}
        write_safetensors(folder / "ema.safetensors", averages, {})
    method_state = method.state_dict(counters.step)
    rollout = {name: value for name, value in method_state.items() if isinstance(value, torch.Tensor)}
    if rollout:
        write_safetensors(folder / _METHOD_FILE, rollout, {})
    state = {
        "counters": counters.to_json(),
        "num_threads": num_threads,
        "plan": plan,
        "method": {name: value for name, value in method_state.items() if name not in rollout},
        "scaler": stepper.scaler.state_dict(),
        "optimizer_values": values,
        "ema_updates": stepper.ema.num_updates if stepper.ema else 0,
        "validation": dict(validation),
        "rewards": dict(rewards),
        "watchdog": stepper.watchdog.state_dict(),
    }
    (folder / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(encode(config), indent=2), encoding="utf-8")


def read_state(folder: Path) -> SavedState:
    """Return a backup's state. Raises DarkroomError if it cannot be read."""
    try:
        data = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return SavedState(**{**data, "counters": Counters.from_json(data["counters"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DarkroomError(
            f"The backup {folder} cannot be resumed: its state.json is not compatible with this version "
            f"({plain_reason(error)}).",
            advice="The weights in the backup can still be used.",
        ) from error


def write_shards_of(
    folder: Path,
    sharded: Mapping[str, ShardedModule],
    *,
    groups: Sequence[TrainGroup],
    stepper: Stepper,
    process: int,
) -> None:
    """Write this process's rows of the sharded parts' weights, optimizer state and EMA, as all processes must.

    `process` is its index. The first one also writes what is not sharded, such as an optimizer's number of steps.
    """
    sharded_groups = [g for g in groups if g.is_sharded]
    tensors, _ = optimizer_state(stepper.optimizer, optimizer_parameters(sharded_groups))
    kinds: dict[Kind, Mapping[str, torch.Tensor]] = {"weights": exact_parameters(sharded_groups), "optimizer": tensors}
    if stepper.ema is not None:
        kinds["ema"] = {name: stepper.ema.averages[name] for name in named_parameters(sharded_groups)}
    rows, whole = {}, {}
    for kind, state in kinds.items():
        for name, values in state.items():
            module, weight = _owner(sharded, name)
            if module is not None and values.dim() > 0 and values.shape == module.rows[weight].shape:
                rows[key_of(kind, name)] = Rows(values, *module.place_of(weight))
            elif process == 0:
                whole[key_of(kind, name)] = values
    write_shards(folder, rows, whole, process=process)


def weights_to_use(
    folder: Path, groups: Sequence[TrainGroup], sharded: Mapping[str, ShardedModule]
) -> dict[str, torch.Tensor]:
    """Return the weights of a backup that its run validated, sampled and saved, by full name.

    They are the EMA weights, the weights of the optimizer's evaluation mode, or the trained weights. `groups` are the
    training units of the run. Of the `sharded` parts each process reads its rows.
    """
    if has_averages(folder):
        return _read(folder, "ema", sharded)
    weights = _read(folder, "weights", sharded)
    settings = load_file(folder / "config.json").config.training.optimizer
    if not optimizer_spec(settings).has_evaluation_mode(settings):
        return weights
    tensors, values = _read(folder, "optimizer", sharded), read_state(folder).optimizer_values
    return _in_evaluation_mode(weights, tensors, values, groups, settings)


def start_from_weights(
    weights: Mapping[str, torch.Tensor], where: Path, *, groups: Sequence[TrainGroup], stepper: Stepper
) -> None:
    """Copy weights of another run, by full name, into a new run, and start its EMA from them.

    Raises DarkroomError, which names `where` they are from, if the run trains other weights.
    """
    parameters = exact_parameters(groups)
    unlike = [n for n, p in parameters.items() if n not in weights or weights[n].shape != p.shape]
    if unlike or len(weights) != len(parameters):
        example = f" One that does not fit is {unlike[0]}." if unlike else ""
        raise DarkroomError(
            f"The weights in {where} do not fit the settings: the backup has {len(weights)}, the run trains "
            f"{len(parameters)}.{example}",
            advice="Set the adapter and the trained parts as in the run it belongs to.",
        )
    _copy_weights(weights, parameters, groups)
    if stepper.ema is not None:
        stepper.ema.load(parameters, 0)


def restore(
    folder: Path,
    saved: SavedState,
    *,
    groups: Sequence[TrainGroup],
    stepper: Stepper,
    method: TrainingMethod,
    sharded: Mapping[str, ShardedModule],
) -> None:
    """Restore weights, optimizer, EMA, gradient scaler and method from a backup.

    Of the `sharded` parts each process reads its rows; the backup may be of any number of processes. Raises
    DarkroomError if the backup and the run have different parameters.
    """
    parameters = exact_parameters(groups)
    weights = _read(folder, "weights", sharded)
    if weights.keys() != parameters.keys():
        raise DarkroomError(
            f"The backup {folder} does not match the run: it contains {len(weights)} weights, the run trains "
            f"{len(parameters)}.",
            advice="Resume with the settings the run was started with.",
        )
    if unlike := [name for name, parameter in parameters.items() if weights[name].shape != parameter.shape]:
        raise DarkroomError(
            f"The backup {folder} does not match the run: {unlike[0]} is {tuple(weights[unlike[0]].shape)} there, the "
            f"run trains {tuple(parameters[unlike[0]].shape)}.",
            advice="An older version split this layer differently: such a run cannot be resumed. Start a new one.",
        )
    _copy_weights(weights, parameters, groups)
    restore_fixed(folder, groups)
    tensors = _read(folder, "optimizer", sharded)
    restore_optimizer_state(stepper.optimizer, groups, tensors, saved.optimizer_values)
    if stepper.ema is not None:
        averages = _read(folder, "ema", sharded)
        stepper.ema.load(averages, saved.ema_updates)
    stepper.scaler.load_state_dict(saved.scaler)
    if saved.watchdog is not None:
        stepper.watchdog.load_state_dict(saved.watchdog)
    rollout = read_safetensors(folder / _METHOD_FILE)[0] if (folder / _METHOD_FILE).exists() else {}
    method.load_state_dict({**saved.method, **{name: tensor.clone() for name, tensor in rollout.items()}})


def restore_fixed(folder: Path, groups: Sequence[TrainGroup]) -> None:
    """Restore the fixed tensors that a backup's weights were trained with; tensors that it lacks stay as they are.

    Backups of older versions lack all of them: they follow from the seed of the run that wrote the backup.
    """
    stored = read_safetensors(folder / _FIXED_FILE)[0] if (folder / _FIXED_FILE).exists() else {}
    for name, tensor in fixed_tensors(groups).items():
        if name in stored:
            tensor.copy_(stored[name])


def _read(folder: Path, kind: Kind, sharded: Mapping[str, ShardedModule]) -> dict[str, torch.Tensor]:
    """Return the tensors of a kind in a backup, on the CPU; of sharded parts only the rows of this process."""
    if not sharded:
        return read_whole(folder, kind)
    file = folder / f"{kind}.safetensors"
    tensors = {}
    for name, whole in read_safetensors(file)[0].items():
        module, weight = _owner(sharded, name)
        tensors[name] = module.rows_of(weight, whole) if module and module.is_like(weight, whole.shape) else whole
    for name, stored in stored_in_shards(folder, kind).items():
        module, weight = _owner(sharded, name)
        if module is not None and module.is_like(weight, stored.shape):
            start, _ = module.place_of(weight)
            tensors[name] = stored.rows(start, start + module.rows[weight].shape[0])
        else:
            tensors[name] = stored.whole()
    return tensors


def _owner(sharded: Mapping[str, ShardedModule], name: str) -> tuple[ShardedModule | None, str]:
    """Return the sharded part that a tensor, or optimizer state of it, belongs to, and the name of the weight."""
    part, _, weight = name.partition("|")[0].partition(".")
    return sharded.get(part), weight


def _in_evaluation_mode(
    weights: Mapping[str, torch.Tensor],
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, Any],
    groups: Sequence[TrainGroup],
    settings: OptimizerSettings,
) -> dict[str, torch.Tensor]:
    """Return the weights at which an optimizer of these settings evaluates, from its state in a backup.

    They are computed in float32, on the CPU, by such an optimizer over copies of the weights.
    """
    units = [
        replace(
            g,
            parameters={n: torch.nn.Parameter(weights[n].float().clone()) for n in g.parameters if n in weights},
            master_weights={},
            hooks=[],
        )
        for g in groups
    ]
    optimizer = build_optimizer(units, settings)
    parameters = named_parameters(units)
    state = {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
    restore_optimizer_state(optimizer, units, state, values)
    with optimizer_in_evaluation(optimizer, units):
        evaluated = {name: p.detach().clone() for name, p in parameters.items()}
    return {**weights, **evaluated}


def _copy_weights(
    weights: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.nn.Parameter], groups: Sequence[TrainGroup]
) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    for master_weight in (s for g in groups for s in g.master_weights.values()):
        master_weight.write_back()
