"""16-bit weights: their master weights, rounding back to 16 bits, and no leftovers after a step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from modules.optim.build import build_optimizer
from modules.optim.optimizers.adamw import AdamW
from modules.optim.optimizers.factored import Adafactor
from modules.optim.param_groups import TrainGroup, exact_parameters, freeze, optimizer_groups, optimizer_parameters
from modules.optim.spec import OptimizerSettings
from modules.optim.updates.master_weights import MasterWeight, Rounding, round_stochastically
from modules.system.seeds import derive_seed
from trainer.methods.protocol import StepLoss
from trainer.step.stepper import Stepper


def draws(step: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(1, f"rounding {name}", step))


def group_of(dtype: torch.dtype, rounding: Rounding | None) -> TrainGroup:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 6, generator=generator).to(torch.bfloat16).to(dtype)
    group = TrainGroup("unet", {"unet.w": nn.Parameter(weight)}, 1e-2)
    if rounding is not None:
        group.master_weight(rounding)
    return group


def stepper_of(group: TrainGroup, settings: OptimizerSettings) -> Stepper:
    return Stepper(
        [group],
        build_optimizer([group], settings),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        clip_grad_norm=1.0,
        rate_factor=lambda step: 1.0,
        ema=None,
        rounding_generators=draws,
    )


def train(group: TrainGroup, stepper: Stepper, steps: range, gradient: Callable[[int], torch.Tensor]) -> None:
    """Steps whose gradients are given: the loss is the weight's product with them."""
    weight = group.parameters["unet.w"]
    for step in steps:
        loss = (weight.float() * gradient(step)).sum()
        stepper.backward(StepLoss(loss=loss, num_samples=1, group_samples=1, is_last_micro_batch=True))
        stepper.finish(step)


def gradient_of(step: int) -> torch.Tensor:
    # What bfloat16 can hold, so that both ways of training see the same gradient.
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(100 + step)).to(torch.bfloat16).float()


@pytest.mark.parametrize("settings", [AdamW(), Adafactor()], ids=lambda s: s.name)
def test_a_master_weight_follows_float32_training(settings: OptimizerSettings) -> None:
    exact, master = group_of(torch.float32, None), group_of(torch.bfloat16, "master")
    train(exact, stepper_of(exact, settings), range(12), gradient_of)
    train(master, stepper_of(master, settings), range(12), gradient_of)
    kept = exact_parameters([master])["unet.w"]
    assert torch.equal(kept, exact.parameters["unet.w"])
    assert torch.equal(master.parameters["unet.w"], kept.to(torch.bfloat16))


def test_small_updates_are_lost_without_and_kept_with_both_modes() -> None:
    """Updates of a thousandth of the weight: below half of bfloat16's resolution, and so nothing, if just rounded."""
    start = torch.ones(4096)
    moved = []
    for rounding in ("master", "stochastic"):
        weight = nn.Parameter(start.to(torch.bfloat16))
        group = TrainGroup("unet", {"unet.w": weight}, 1e-3)
        group.master_weight(rounding)  # type: ignore[arg-type]  # one of the two
        optimizer = torch.optim.SGD(optimizer_groups([group]), lr=1e-3)
        stepper = Stepper(
            [group],
            optimizer,
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            clip_grad_norm=None,
            rate_factor=lambda step: 1.0,
            ema=None,
            rounding_generators=draws,
        )
        train(group, stepper, range(20), lambda step: torch.ones(4096))
        moved.append(float((start - weight.detach().float()).mean()))
    plain = start.to(torch.bfloat16)
    for _ in range(20):
        plain -= 1e-3
    assert float((start - plain.float()).mean()) == 0.0
    assert moved[0] == pytest.approx(0.02, abs=0.002)
    assert moved[1] == pytest.approx(0.02, abs=0.001)


def test_stochastic_rounding_is_right_on_average_and_seeded() -> None:
    values = torch.tensor([1.0, 1.001, -3.14159, 1e-20, 65_000.0, 0.0])
    rounded = torch.stack([round_stochastically(values, torch.Generator().manual_seed(s)) for s in range(2000)]).float()
    torch.testing.assert_close(rounded.mean(0), values, rtol=3e-4, atol=0)
    below, above = rounded.min(0).values, rounded.max(0).values
    assert torch.equal(below[[0, 5]], above[[0, 5]]), "values that bfloat16 represents exactly do not change"
    assert ((above - below) <= values.abs() * 2**-7).all()
    again = round_stochastically(values, torch.Generator().manual_seed(7))
    assert torch.equal(again, round_stochastically(values, torch.Generator().manual_seed(7)))


def test_stochastic_rounding_keeps_values_that_are_not_finite() -> None:
    largest = torch.finfo(torch.float32).max
    values = torch.tensor([float("inf"), float("-inf"), float("nan"), largest])
    rounded = round_stochastically(values, torch.Generator().manual_seed(0))
    assert rounded[:2].tolist() == [float("inf"), float("-inf")]
    assert rounded[2].isnan()
    assert rounded.dtype == torch.bfloat16


def test_it_supports_bfloat16_only() -> None:
    with pytest.raises(ValueError, match=r"not torch\.float16"):
        MasterWeight.of(nn.Parameter(torch.ones(2, dtype=torch.float16)), "stochastic")


@pytest.mark.parametrize("rounding", ["master", "stochastic"])
def test_a_step_leaves_no_copies_behind(rounding: Rounding) -> None:
    group = group_of(torch.bfloat16, rounding)
    stepper = stepper_of(group, AdamW())
    train(group, stepper, range(2), gradient_of)
    (master_weight,) = group.master_weights.values()
    assert master_weight.weight.grad is None
    assert master_weight.master.grad is None
    assert master_weight.master.numel() == (48 if rounding == "master" else 0)
    # A step that is not finished, too.
    stepper.backward(
        StepLoss(loss=master_weight.weight.float().sum(), num_samples=1, group_samples=1, is_last_micro_batch=False)
    )
    before = master_weight.weight.detach().clone()
    stepper.discard()
    assert master_weight.weight.grad is None
    assert torch.equal(master_weight.weight, before)


@pytest.mark.parametrize("rounding", ["master", "stochastic"])
def test_a_step_that_is_not_finite_updates_nothing(rounding: Rounding) -> None:
    group = group_of(torch.bfloat16, rounding)
    stepper = stepper_of(group, AdamW())
    before = {n: p.detach().clone() for n, p in exact_parameters([group]).items()}
    train(group, stepper, range(1), lambda step: torch.full((8, 6), float("inf")))
    after = exact_parameters([group])
    assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("rounding", ["master", "stochastic"])
def test_a_frozen_group_keeps_the_exact_values_and_nothing_else(rounding: Rounding) -> None:
    group = group_of(torch.bfloat16, rounding)
    stepper = stepper_of(group, AdamW())
    train(group, stepper, range(2), gradient_of)
    weight = group.parameters["unet.w"].detach().clone()
    exact = exact_parameters([group])["unet.w"].detach().clone()
    freeze(group, stepper.optimizer)
    assert not stepper.optimizer.state
    assert not any(p.requires_grad or p.grad is not None for p in optimizer_parameters([group]).values())
    assert bool(group.master_weights) == (rounding == "master")
    assert torch.equal(exact_parameters([group])["unet.w"], exact)
    assert torch.equal(group.parameters["unet.w"], weight)
