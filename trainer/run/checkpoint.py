"""The state of a run as files in a backup's folder, and back: tensors as safetensors, the rest as JSON.

Nothing in it is code, and nothing random: draws follow from the seed and the counters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from modules.config.codec import encode
from modules.config.schema import Config
from modules.formats.safetensors_io import read_safetensors, write_safetensors
from modules.optim.param_groups import (
    TrainGroup,
    is_of_group,
    kept_parameters,
    moved_parameters,
    optimizer_state,
    restore_optimizer_state,
)
from modules.system.errors import DarkroomError
from trainer.methods.protocol import TrainingMethod
from trainer.step.counters import Counters
from trainer.step.stepper import Stepper

_METHOD_FILE = "method.safetensors"  # only where a method keeps tensors, such as a rollout under way


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a backup says beside its tensors."""

    counters: Counters
    num_threads: int
    plan: str
    method: dict[str, Any]
    scaler: dict[str, Any]
    optimizer_values: dict[str, Any]
    ema_updates: int
    validation: dict[str, Any] = field(default_factory=dict)
    rewards: dict[str, Any] = field(default_factory=dict)


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
    """Write everything a run needs to go on. `plan` is the fingerprint of the images and their order."""
    write_safetensors(folder / "weights.safetensors", kept_parameters(groups), {})
    tensors, values = optimizer_state(stepper.optimizer, moved_parameters(groups))
    write_safetensors(folder / "optimizer.safetensors", tensors, {})
    if stepper.ema is not None:
        write_safetensors(folder / "ema.safetensors", stepper.ema.averages, {})
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
    }
    (folder / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(encode(config), indent=2), encoding="utf-8")


def read_state(folder: Path) -> SavedState:
    """Return a backup's state. Raises DarkroomError where it cannot be read."""
    try:
        data = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return SavedState(**{**data, "counters": Counters.from_json(data["counters"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DarkroomError(
            f"The backup {folder} cannot be resumed: its state.json does not fit this version ({error}).",
            advice="The weights inside it can still be used as they are.",
        ) from error


def restore(
    folder: Path, saved: SavedState, *, groups: Sequence[TrainGroup], stepper: Stepper, method: TrainingMethod
) -> None:
    """Give weights, optimizer, average, scaler and method the state of a backup.

    Raises DarkroomError where the backup holds other parameters than the run has.
    """
    parameters = kept_parameters(groups)
    weights, _ = read_safetensors(folder / "weights.safetensors")
    if weights.keys() != parameters.keys():
        raise DarkroomError(
            f"The backup {folder} holds {len(weights)} weights where the run has {len(parameters)}.",
            advice="Resume with the settings the run was begun with.",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    for master_weight in (s for g in groups for s in g.master_weights.values()):
        master_weight.give_value()
    tensors, _ = read_safetensors(folder / "optimizer.safetensors")
    # A part that learned when the backup was written may have stopped since: its state would lie there for nothing.
    learning = moved_parameters(g for g in groups if g.is_training)
    of_learning = (
        {key: value for key, value in state.items() if is_of_group(key) or key.rsplit("|", 1)[0] in learning}
        for state in (tensors, saved.optimizer_values)
    )
    restore_optimizer_state(stepper.optimizer, learning, *of_learning)
    if stepper.ema is not None:
        averages, _ = read_safetensors(folder / "ema.safetensors")
        stepper.ema.load(averages, saved.ema_updates)
    stepper.scaler.load_state_dict(saved.scaler)
    rollout = read_safetensors(folder / _METHOD_FILE)[0] if (folder / _METHOD_FILE).exists() else {}
    method.load_state_dict({**saved.method, **{name: tensor.clone() for name, tensor in rollout.items()}})
