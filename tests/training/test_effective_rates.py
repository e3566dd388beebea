"""The learning rates that adaptive optimizers find, as they are reported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import optimization

from modules.optim.build import build_optimizer
from modules.optim.optimizers.factored import Adafactor
from modules.optim.param_groups import TrainGroup, effective_rates, optimizer_groups
from modules.optim.registry import optimizer_spec
from tests.builders.configs import small_config
from tests.builders.runs import run
from trainer.events import StepFinished
from trainer.methods.protocol import StepLoss
from trainer.step.stepper import Stepper


def of_group(group: Mapping[str, Any]) -> Any:
    return group.get("found")


def test_a_tensor_of_an_accelerator_is_not_read_and_the_first_rate_of_a_unit_counts() -> None:
    tensor = torch.tensor([0.5], device="meta")
    groups: list[dict[str, Any]] = [
        {"unit": "unet", "found": None},
        {"unit": "unet", "found": 0.25},
        {"unit": "unet", "found": 4.0},
        {"unit": "text_encoder", "found": torch.tensor(0.5, dtype=torch.float64)},
        {"unit": "text_encoder_2", "found": math.nan},
        {"unit": "vae", "found": tensor},
        {"unit": "other"},
    ]
    numbers, tensors = effective_rates(groups, of_group)
    assert numbers == {"unet": 0.25, "text_encoder": 0.5}
    assert tensors.keys() == {"vae"}
    assert tensors["vae"].shape == ()
    assert effective_rates(groups, None) == ({}, {})


def test_a_step_reports_the_rate_after_it() -> None:
    weight = nn.Parameter(torch.ones(2))
    group = TrainGroup("unet", {"w": weight}, 0.5)
    optimizer = torch.optim.SGD(optimizer_groups([group]))
    optimizer.register_step_post_hook(lambda *_: optimizer.param_groups[0].update(found=0.125))
    stepper = Stepper(
        [group],
        optimizer,
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        clip_grad_norm=None,
        rate_factor=lambda step: 1.0,
        ema=None,
        effective_rate=of_group,
    )
    stepper.backward(StepLoss(weight.square().sum(), 1, 1, is_last_micro_batch=True))
    outcome = stepper.finish(0)
    assert (outcome.learning_rates, outcome.effective_rates) == ({"unet": 0.5}, {"unet": 0.125})


def steps_of(optimizer: torch.optim.Optimizer, weight: nn.Parameter, num_steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(num_steps):
        weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
        found.append(weight.detach().clone())
    return found


@pytest.mark.parametrize("scale_parameter", [False, True])
@pytest.mark.parametrize("warmup_init", [False, True])
def test_adafactor_chooses_the_rate_of_transformers(scale_parameter: bool, warmup_init: bool) -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 24).reshape(4, 6)) for _ in range(2))
    settings = Adafactor(relative_step=True, warmup_init=warmup_init, scale_parameter=scale_parameter)
    optimizer = build_optimizer([TrainGroup("unet", {"w": ours}, 0.5)], settings)
    rate_of = optimizer_spec(settings).effective_rate
    assert effective_rates(optimizer.param_groups, rate_of) == ({}, {})
    reference = optimization.Adafactor(
        [theirs], relative_step=True, warmup_init=warmup_init, scale_parameter=scale_parameter
    )
    for one, other in zip(steps_of(optimizer, ours, 5), steps_of(reference, theirs, 5), strict=True):
        assert torch.equal(one, other)
    expected = min(5e-6 if warmup_init else 1e-2, 1 / math.sqrt(5))
    rates, _ = effective_rates(optimizer.param_groups, rate_of)
    assert rates == {"unet": pytest.approx(expected)}
    assert rate_of is not None
    assert rate_of({"lr": 1.0}) is None


def test_a_run_with_adafactors_own_rate_reports_it(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    optimizer = {"name": "adafactor", "relative_step": True, "warmup_init": True}
    config = small_config(
        tmp_path, model=tiny_sd, images=images, training={"optimizer": optimizer, "schedule": "adafactor", "epochs": 1}
    )
    steps = run(config).of(StepFinished)
    assert [s.effective_rates["unet"] for s in steps] == pytest.approx([1e-6 * s.step for s in steps])
