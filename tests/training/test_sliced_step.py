"""Updating 16-bit weights in slices: a step needs the memory of one slice, and slicing does not change the result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from modules.optim.build import build_optimizer
from modules.optim.optimizers.adamw import AdamW
from modules.optim.optimizers.d_adaptation import Prodigy
from modules.optim.optimizers.factored import Adafactor
from modules.optim.param_groups import TrainGroup, exact_parameters, optimizer_groups
from modules.optim.spec import OptimizerSettings
from modules.optim.updates import sliced_step as moving
from modules.optim.updates.master_weights import MasterWeight, Rounding
from modules.system.seeds import derive_seed
from tests.builders.live_bytes import LiveBytes
from trainer.methods.protocol import StepLoss
from trainer.step.stepper import Stepper

SIDE = 64
NUM_WEIGHTS = SIDE * SIDE
NUM_TENSORS = 40


def groups_of(rounding: Rounding | None) -> list[TrainGroup]:
    """Two parts of many small matrices; a last one is larger than a slice may be."""
    generator = torch.Generator().manual_seed(0)
    groups = []
    for part in ("unet", "text_encoder"):
        shapes = [(SIDE, SIDE)] * NUM_TENSORS + [(3 * SIDE, SIDE)]
        values = [torch.randn(s, generator=generator).to(torch.bfloat16) for s in shapes]
        group = TrainGroup(part, {f"{part}.{i}": nn.Parameter(v) for i, v in enumerate(values)}, 1e-3)
        if rounding is not None:
            group.master_weight(rounding)
        groups.append(group)
    return groups


def stepper_of(groups: list[TrainGroup], settings: OptimizerSettings, **options: Any) -> Stepper:
    return Stepper(
        groups,
        build_optimizer(groups, settings),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        clip_grad_norm=options.pop("clip_grad_norm", 1.0),
        rate_factor=lambda step: 1.0,
        ema=None,
        rounding_generators=lambda step, name: torch.Generator().manual_seed(derive_seed(step, name)),
        **options,
    )


def backward(groups: list[TrainGroup], stepper: Stepper, step: int) -> None:
    weights = [p for g in groups for p in g.parameters.values()]
    loss = torch.stack([(w.float() * (i % 3 + step)).square().mean() for i, w in enumerate(weights)]).sum()
    stepper.begin(step)
    stepper.backward(StepLoss(loss, num_samples=1, group_samples=1, is_last_micro_batch=True))


def taken_by_a_step(settings: OptimizerSettings, rounding: Rounding) -> int:
    """The peak bytes that the second step allocates; the first one creates the state."""
    groups = groups_of(rounding)
    stepper = stepper_of(groups, settings)
    for step in range(2):
        backward(groups, stepper, step)
        with LiveBytes() as live:
            stepper.finish(step)
    return live.peak


@pytest.mark.parametrize("settings", [AdamW(), Adafactor()], ids=lambda s: s.name)
@pytest.mark.parametrize("rounding", ["master", "stochastic"])
def test_a_step_needs_the_memory_of_its_largest_slice(
    monkeypatch: pytest.MonkeyPatch, settings: OptimizerSettings, rounding: Rounding
) -> None:
    everything = 2 * (NUM_TENSORS + 3) * NUM_WEIGHTS
    at_once = taken_by_a_step(settings, rounding)
    assert at_once >= 4 * everything
    monkeypatch.setattr(moving, "SLICE_WEIGHTS", 2 * NUM_WEIGHTS)
    # Value and gradient in float32, and the workspace of the optimizer (Adafactor: three arrays) or of rounding (five).
    bound = 7 * 4 * (3 * NUM_WEIGHTS)
    assert taken_by_a_step(settings, rounding) <= bound + 1024
    assert bound < at_once / 4


@pytest.mark.parametrize("rounding", ["master", "stochastic"])
@pytest.mark.parametrize("settings", [AdamW(), Prodigy()], ids=lambda s: s.name)
def test_slicing_does_not_change_the_result(
    monkeypatch: pytest.MonkeyPatch, rounding: Rounding, settings: OptimizerSettings
) -> None:
    ended = []
    for size in (1, 3 * NUM_WEIGHTS, 1 << 30):
        monkeypatch.setattr(moving, "SLICE_WEIGHTS", size)
        groups = groups_of(rounding)
        stepper = stepper_of(groups, settings)
        for step in range(3):
            backward(groups, stepper, step)
            assert not stepper.finish(step).was_skipped
        ended.append(exact_parameters(groups))
    for name, value in ended[0].items():
        assert all(torch.equal(value, other[name]) for other in ended[1:]), name


def test_slices_contain_each_parameter_with_a_gradient_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "SLICE_WEIGHTS", 5 * NUM_WEIGHTS)
    groups = groups_of("stochastic")
    stepper = stepper_of(groups, AdamW())
    backward(groups, stepper, 1)
    groups[0].parameters["unet.7"].grad = None
    cut = list(moving.slices(groups, stepper.optimizer))
    sizes = [sum(groups_by_part(groups)[p].parameters[n].numel() for p, ns in c.items() for n in ns) for c in cut]
    assert max(sizes) == 5 * NUM_WEIGHTS
    names = [n for c in cut for ns in c.values() for n in ns]
    expected = [n for g in groups for n in g.parameters if n != "unet.7"]
    assert names == expected
    assert any(len(c) == 2 for c in cut), "a slice may hold the end of a part and the beginning of the next"


class LooksAtAll(torch.optim.SGD):
    """Counts its steps in every group, and records the parameters it received."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["handed"] = len(group["params"])
        super().step(closure)


@pytest.mark.parametrize("rounding", ["master", "stochastic"])
def test_an_optimizer_that_needs_all_weights_steps_once_with_all_of_them(
    monkeypatch: pytest.MonkeyPatch, rounding: Rounding
) -> None:
    monkeypatch.setattr(moving, "SLICE_WEIGHTS", NUM_WEIGHTS)
    groups = groups_of(rounding)
    groups[0].parameters["unet.float32"] = nn.Parameter(torch.ones(3))
    stepper = Stepper(
        groups,
        optimizer := LooksAtAll([{**g, "steps_at_once": True} for g in optimizer_groups(groups)]),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        clip_grad_norm=1.0,
        rate_factor=lambda step: 1.0,
        ema=None,
        rounding_generators=lambda step, name: torch.Generator().manual_seed(derive_seed(step, name)),
    )
    backward(groups, stepper, 1)
    stepper.finish(1)
    handed = [(g["k"], g["handed"]) for g in optimizer.param_groups]
    assert handed == [(1, NUM_TENSORS + 2), (1, NUM_TENSORS + 1)]
    backward(groups, stepper, 2)
    for weight in groups[1].parameters.values():
        weight.grad = None
    stepper.finish(2)
    handed = [(g["k"], g["handed"]) for g in optimizer.param_groups]
    assert handed == [(2, NUM_TENSORS + 2), (2, 0)], "a group without gradients keeps step with the others"


def groups_by_part(groups: list[TrainGroup]) -> dict[str, TrainGroup]:
    return {g.name: g for g in groups}


def test_a_weight_without_a_gradient_stays_and_has_no_state() -> None:
    groups = groups_of("stochastic")
    stepper = stepper_of(groups, AdamW())
    backward(groups, stepper, 1)
    weight = groups[0].parameters["unet.7"]
    before, weight.grad = weight.detach().clone(), None
    stepper.finish(1)
    assert torch.equal(weight, before)
    assert groups[0].master_weights["unet.7"].master not in stepper.optimizer.state


@pytest.mark.parametrize("rounding", ["master", "stochastic"])
def test_a_scaled_loss_and_clipping_in_16_bits(rounding: Rounding) -> None:
    """The scale is a power of two: undone, it leaves no trace."""
    ended = []
    for is_scaled in (False, True):
        groups = groups_of(rounding)
        stepper = stepper_of(groups, AdamW(), clip_grad_norm=0.5)
        stepper.scaler = torch.amp.GradScaler("cpu", enabled=is_scaled, init_scale=1024.0)
        for step in range(2):
            backward(groups, stepper, step)
            outcome = stepper.finish(step)
        assert outcome.gradient_norm is not None
        ended.append((outcome, exact_parameters(groups)))
    (plain, one), (scaled, other) = ended
    assert scaled.gradient_norm == pytest.approx(plain.gradient_norm, rel=1e-6)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_overflow_under_a_scaled_loss_skips_the_step_and_lowers_the_scale() -> None:
    groups = groups_of("stochastic")
    stepper = stepper_of(groups, AdamW())
    stepper.scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=1024.0)
    weights = [p for g in groups for p in g.parameters.values()]
    before = [p.detach().clone() for p in weights]
    backward(groups, stepper, 1)
    gradient = groups[0].parameters["unet.3"].grad
    assert gradient is not None
    gradient[0, 0] = float("inf")
    assert stepper.finish(1).was_skipped
    assert stepper.scaler.get_scale() == 512.0
    assert all(torch.equal(a, p) for a, p in zip(before, weights, strict=True))


def test_a_fused_pass_does_not_iterate_over_all_weights_for_each() -> None:
    """A fine-tune of SDXL has 1,700 weights: to ask 1,700 of each would be three million questions a step."""
    asked = 0

    class Counted(dict[str, MasterWeight]):
        def items(self) -> Any:
            nonlocal asked
            asked += len(self)
            return super().items()

    groups = groups_of("stochastic")
    stepper = stepper_of(groups, AdamW(fused_back_pass=True), clip_grad_norm=None, is_fused=True)
    for group in groups:
        group.master_weights = Counted(group.master_weights)
    backward(groups, stepper, 0)
    assert stepper.finish(0).gradient_norm
    assert asked <= 2 * sum(len(g.parameters) for g in groups)


def test_a_step_without_gradients_does_not_count_for_the_loss_scaler() -> None:
    """A loss may have no graph, as the step allows: then there is nothing to scale and nothing to undo."""
    groups = groups_of("stochastic")
    stepper = stepper_of(groups, AdamW())
    stepper.scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=1024.0)
    none = StepLoss(
        torch.zeros(()), num_samples=1, group_samples=1, is_last_micro_batch=True, zero_gradient_is_legal=True
    )
    for step in range(4):  # before the scaler has seen any loss, and after
        if step % 2:
            backward(groups, stepper, step)
        else:
            stepper.backward(none)
        assert not stepper.finish(step).was_skipped
    assert stepper.scaler.get_scale() == 1024.0
