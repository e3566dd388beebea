"""A training unit whose weights have different learning rates or options is several groups of the optimizer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import pytest
import torch
from torch import nn

from modules.optim.build import build_optimizer
from modules.optim.optimizers.adamw import AdamW
from modules.optim.optimizers.sums import Sgd
from modules.optim.param_groups import (
    TrainGroup,
    exact_parameters,
    freeze,
    optimizer_groups,
    optimizer_parameters,
    optimizer_state,
)
from modules.optim.updates.master_weights import Rounding
from modules.optim.updates.sliced_step import gradients_in_groups
from trainer.methods.protocol import StepLoss
from trainer.step.stepper import Stepper


def units(dtype: torch.dtype = torch.float32) -> list[TrainGroup]:
    """Two units of three weights; the second weight of the first moves ten times as fast."""

    def weights(part: str) -> dict[str, nn.Parameter]:
        return {f"{part}.{n}": nn.Parameter(torch.ones(2, dtype=dtype)) for n in range(3)}

    first = TrainGroup("unet", weights("unet"), 0.01, rate_ratios={"unet.1": 10.0})
    return [first, TrainGroup("text_encoder", weights("text_encoder"), 0.02)]


def stepper_of(groups: list[TrainGroup], *, scaler: torch.amp.GradScaler | None = None) -> Stepper:
    return Stepper(
        groups,
        build_optimizer(groups, Sgd()),
        scaler=scaler or torch.amp.GradScaler("cpu", enabled=False),
        clip_grad_norm=None,
        rate_factor=lambda step: 0.5,
        ema=None,
        rounding_generators=lambda step, name: torch.Generator().manual_seed(step),
    )


def step(stepper: Stepper, groups: list[TrainGroup]) -> dict[str, float]:
    total = torch.stack([p.float().sum() for g in groups for p in g.parameters.values()]).sum()
    stepper.backward(StepLoss(total, num_samples=1, group_samples=1, is_last_micro_batch=True))
    return stepper.finish(0).learning_rates


@pytest.mark.parametrize("rounding", [None, "master", "stochastic"])
def test_each_weight_moves_at_its_own_rate(rounding: Rounding | None) -> None:
    groups = units(torch.float32 if rounding is None else torch.bfloat16)
    for group in groups:
        group.master_weight(rounding or "master")
    rates = step(stepper_of(groups), groups)
    assert rates == {"unet": 0.005, "text_encoder": 0.01}
    moved = {name: round(1.0 - p[0].item(), 2) for name, p in exact_parameters(groups).items()}
    assert moved["unet.1"] == pytest.approx(0.05, abs=0.01)
    assert moved["text_encoder.2"] == pytest.approx(0.01, abs=0.005)
    if rounding != "stochastic":  # bfloat16 has no 0.995
        assert exact_parameters(groups)["unet.0"][0].item() == pytest.approx(0.995)


def test_a_scaler_unscales_each_gradient_once() -> None:
    groups = units()
    stepper_of(groups)
    optimizer = build_optimizer(groups, Sgd())
    with gradients_in_groups(optimizer, {g.name: g for g in groups}):
        held = [p for g in optimizer.param_groups for p in g["params"]]
    assert len(held) == len(set(map(id, held))) == 6
    assert [len(g["params"]) for g in optimizer.param_groups] == [2, 1, 3]


def test_a_group_has_the_options_and_the_rate_of_its_weights() -> None:
    def options_of(group: TrainGroup, name: str, parameter: nn.Parameter) -> Mapping[str, Hashable]:
        return {"is_matrix": True} if name.endswith("2") else {"is_matrix": False, "rate": 3e-4}

    own = optimizer_groups(units(), options_of)
    assert [(g["unit"], g["number"], g["lr"], g["is_matrix"], len(g["params"])) for g in own] == [
        ("unet", 0, pytest.approx(3e-4), False, 1),
        ("unet", 1, pytest.approx(3e-3), False, 1),
        ("unet", 2, pytest.approx(0.01), True, 1),
        ("text_encoder", 0, pytest.approx(3e-4), False, 2),
        ("text_encoder", 1, pytest.approx(0.02), True, 1),
    ]


def test_the_state_of_each_group_has_a_key_of_its_own_and_freezing_removes_all_groups() -> None:
    groups = units()
    optimizer = build_optimizer(groups, AdamW())
    for number, group in enumerate(optimizer.param_groups):
        group["group_state"], group["d"] = ("d",), number
    assert optimizer_state(optimizer, optimizer_parameters(groups))[1] == {
        "group unet|d": 0,
        "group unet 1|d": 1,
        "group text_encoder|d": 2,
    }
    freeze(groups[0], optimizer)
    assert [g["unit"] for g in optimizer.param_groups] == ["text_encoder"]
