"""The learning rates that adaptive optimizers find, as they are reported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from modules.optim.effective_rates import effective_rates
from modules.optim.param_groups import TrainGroup, optimizer_groups
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
