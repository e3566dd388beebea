"""Weights with their channels innermost under every optimizer: a resumed run pairs them with their own state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from modules.config.schema import Config
from modules.optim.build import build_optimizer
from modules.optim.param_groups import (
    TrainGroup,
    exact_parameters,
    optimizer_parameters,
    optimizer_state,
    restore_optimizer_state,
)
from modules.optim.registry import optimizer_spec
from modules.optim.spec import OptimizerSettings, is_fused
from modules.optim.updates.master_weights import Rounding
from modules.system.seeds import derive_seed
from tests.builders.configs import laid_over, small_config
from tests.builders.runs import assert_equal_tensors, run
from tests.training.test_every_optimizer import WITH_MORE_STATE, case
from tests.training.test_optimizers_of_packages import WITH_OPTIONS
from trainer.methods.protocol import StepLoss
from trainer.step.stepper import Stepper

CONTIGUOUS, CHANNELS_LAST = torch.contiguous_format, torch.channels_last
SHAPES = {"kernel": (8, 6, 3, 3), "small": (4, 3, 3, 3), "pointwise": (20, 16, 1, 1), "matrix": (6, 5)}
EVERY = [*WITH_MORE_STATE, *WITH_OPTIONS]


class Convolutions:
    """A few weights in a memory format, and the stepper that trains them by gradients of the step's number."""

    def __init__(
        self, settings: OptimizerSettings, memory_format: torch.memory_format, rounding: Rounding | None
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        dtype = torch.float32 if rounding is None else torch.bfloat16
        values = {n: (1.0 + torch.rand(shape, generator=generator)).to(dtype) for n, shape in SHAPES.items()}
        self.weights = {
            n: nn.Parameter(v.contiguous(memory_format=memory_format) if v.dim() == 4 else v) for n, v in values.items()
        }
        rate = 1.0 if optimizer_spec(settings).finds_its_rate else 0.02
        self.group = TrainGroup("unet", {f"unet.{n}": p for n, p in self.weights.items()}, rate)
        if rounding is not None:
            self.group.master_weight(rounding)
        self.optimizer = build_optimizer([self.group], settings)
        self.stepper = Stepper(
            [self.group],
            self.optimizer,
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            clip_grad_norm=None,
            rate_factor=lambda step: 1.0,
            ema=None,
            rounding_generators=lambda step, name: torch.Generator().manual_seed(derive_seed(step, name)),
            is_fused=is_fused(settings),
        )

    def take(self, steps: Iterable[int]) -> None:
        for step in steps:
            losses = []
            for name, weight in self.weights.items():
                noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(derive_seed(step, name)))
                losses.append((weight.float() * (noise + 1.0)).sum())
            self.stepper.begin(step)
            self.stepper.backward(StepLoss(torch.stack(losses).sum(), 1, 1, is_last_micro_batch=True))
            self.stepper.finish(step)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The state as a backup holds it: contiguous tensors, and JSON."""
        tensors, values = optimizer_state(self.optimizer, optimizer_parameters([self.group]))
        return {n: t.clone(memory_format=CONTIGUOUS) for n, t in tensors.items()}, json.loads(json.dumps(values))

    def resumed(
        self, settings: OptimizerSettings, memory_format: torch.memory_format, rounding: Rounding | None
    ) -> Convolutions:
        other = Convolutions(settings, memory_format, rounding)
        with torch.no_grad():
            for name, parameter in exact_parameters([other.group]).items():
                parameter.copy_(exact_parameters([self.group])[name].clone(memory_format=CONTIGUOUS))
        restore_optimizer_state(other.optimizer, [other.group], *self.state())
        return other

    def layouts(self) -> dict[str, tuple[int, ...]]:
        tensors, _ = optimizer_state(self.optimizer, optimizer_parameters([self.group]))
        return {name: tensor.stride() for name, tensor in tensors.items()}

    def values(self) -> dict[str, torch.Tensor]:
        return {n: p.detach().clone(memory_format=CONTIGUOUS) for n, p in exact_parameters([self.group]).items()}


def toy_sized(settings: OptimizerSettings) -> OptimizerSettings:
    """Settings under which the larger kernel has 8-bit state, if any, and an estimated rate moves 16-bit weights."""
    own = {"min_8bit_size": 256, "muon_with_aux_adam": False, "d0": 0.1}
    return settings.model_copy(update={k: v for k, v in own.items() if k in type(settings).model_fields})


every = pytest.mark.parametrize("settings", [toy_sized(s) for s in EVERY], ids=case)


@pytest.mark.daily(60)
@every
@pytest.mark.parametrize("rounding", [None, "master", "stochastic"])
def test_a_resumed_run_ends_the_same_to_the_bit(settings: OptimizerSettings, rounding: Rounding | None) -> None:
    one = Convolutions(settings, CHANNELS_LAST, rounding)
    one.take(range(3))
    other = one.resumed(settings, CHANNELS_LAST, rounding)
    assert other.layouts() == one.layouts()  # kernels of a GPU read memory, whatever the layout is
    assert all(w.is_contiguous(memory_format=CHANNELS_LAST) for w in one.weights.values() if w.dim() == 4)
    one.take(range(3, 5))
    other.take(range(3, 5))
    torch.testing.assert_close(other.values(), one.values(), rtol=0.0, atol=0.0)
    torch.testing.assert_close(other.state()[0], one.state()[0], rtol=0.0, atol=0.0)


@pytest.mark.daily(30)
@every
@pytest.mark.parametrize("rounding", [None, "stochastic"])
def test_the_memory_format_changes_neither_the_steps_nor_the_state_of_a_weight(
    settings: OptimizerSettings, rounding: Rounding | None
) -> None:
    """A backup says of each weight the same in any format: sums over a weight alone are rounded in another order."""
    one, other = (Convolutions(settings, f, rounding) for f in (CONTIGUOUS, CHANNELS_LAST))
    one.take(range(3))
    other.take(range(3))
    torch.testing.assert_close(other.values(), one.values(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.state()[0], one.state()[0], rtol=1e-3, atol=1e-4)
    resumed = other.resumed(settings, CONTIGUOUS, rounding)
    one.take([3])
    resumed.take([3])
    torch.testing.assert_close(resumed.values(), one.values(), rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": {"name": "adamw"}, "ema": {"mode": "train_device", "decay": 0.9}},
        pytest.param({"optimizer": {"name": "adamw_8bit", "min_8bit_size": 256}}, marks=pytest.mark.full),
        pytest.param({"optimizer": {"name": "adamw_adv", "nnmf_factor": True}}, marks=pytest.mark.full),
    ],
    ids=["adamw", "8-bit", "factored"],
)
def test_a_fine_tune_with_channels_last_resumes_to_the_bit(
    tiny_sd: Path, images: Path, tmp_path: Path, training: dict[str, Any]
) -> None:
    def config(epochs: int, name: str) -> Config:
        own = {"trains": "full", "learning_rate": 1e-3, "epochs": epochs, **training}
        return laid_over(
            small_config(tmp_path / name, model=tiny_sd, images=images),
            {"model": {"channels_last": "on"}, "training": own, "output": {"dtype": "float32"}},
            replaced=("optimizer",),
        )

    straight = Path(run(config(2, "straight")).finished.backup_path)
    first = Path(run(config(1, "resumed")).finished.backup_path)
    resumed = Path(run(config(2, "resumed"), resume_from=first).finished.backup_path)
    for name in ("weights", "optimizer", *(["ema"] if "ema" in training else [])):
        assert_equal_tensors(*(load_file(backup / f"{name}.safetensors") for backup in (straight, resumed)))
