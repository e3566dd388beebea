"""Optimizers, schedules, averages and groups against closed forms and torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from modules.config.sections.optimizer import Adafactor, AdamW
from modules.config.sections.schedule import Constant, Cosine, Linear
from modules.diffusion.noise import fixed_timesteps, generator_for, uniform_timesteps
from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas
from modules.diffusion.weighting import min_snr_weights
from modules.optim.ema import Ema
from modules.optim.param_groups import (
    TrainGroup,
    freeze,
    named_parameters,
    optimizer_groups,
    optimizer_state,
    restore_optimizer_state,
)
from modules.optim.registry import build_optimizer
from modules.optim.schedules import learning_rate_factor
from modules.system.devices import CPU, Device


def groups_of(*names: str) -> list[TrainGroup]:
    generator = torch.Generator().manual_seed(0)
    return [
        TrainGroup(n, {f"{n}.w": nn.Parameter(torch.randn(4, 3, generator=generator))}, 0.1 * (i + 1))
        for i, n in enumerate(names)
    ]


def step(optimizer: torch.optim.Optimizer, groups: list[TrainGroup], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in named_parameters(groups).values():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.grad = noise if parameter.requires_grad else None
    optimizer.step()


def test_adamw_is_torchs_with_the_settings() -> None:
    ours, theirs = groups_of("a"), groups_of("a")
    settings = AdamW(beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.2)
    one = build_optimizer(optimizer_groups(ours), settings)
    other = torch.optim.AdamW(theirs[0].parameters.values(), lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.2)
    for seed in range(5):
        step(one, ours, seed)
        step(other, theirs, seed)
    assert torch.equal(ours[0].parameters["a.w"], theirs[0].parameters["a.w"])


@pytest.mark.parametrize("settings", [AdamW(), Adafactor()])
def test_optimizer_state_goes_out_and_in_by_name(settings: AdamW | Adafactor) -> None:
    straight, resumed = groups_of("a", "b"), groups_of("a", "b")
    one = build_optimizer(optimizer_groups(straight), settings)
    for seed in range(3):
        step(one, straight, seed)
    tensors, values = optimizer_state(one, named_parameters(straight))
    assert all("|" in name for name in (*tensors, *values))
    other = build_optimizer(optimizer_groups(resumed), settings)
    with torch.no_grad():
        for name, parameter in named_parameters(resumed).items():
            parameter.copy_(named_parameters(straight)[name])
    restore_optimizer_state(other, named_parameters(resumed), {k: v.clone() for k, v in tensors.items()}, values)
    for seed in range(3, 6):
        step(one, straight, seed)
        step(other, resumed, seed)
    for name, parameter in named_parameters(straight).items():
        assert torch.equal(parameter, named_parameters(resumed)[name])


@pytest.mark.parametrize("field", ["beta1", "beta2", "eps", "weight_decay"])
def test_every_field_of_adamw_changes_the_step(field: str) -> None:
    _every_field_changes_the_step(AdamW(), field, {"beta1": 0.5, "beta2": 0.5, "eps": 0.1, "weight_decay": 0.5})


@pytest.mark.parametrize("field", ["beta2_decay", "clip_threshold", "weight_decay"])
def test_every_field_of_adafactor_changes_the_step(field: str) -> None:
    changed = {"beta2_decay": -0.1, "clip_threshold": 50.0, "weight_decay": 0.5}
    _every_field_changes_the_step(Adafactor(), field, changed)


def _every_field_changes_the_step(settings: AdamW | Adafactor, field: str, values: dict[str, float]) -> None:
    results = []
    for chosen in (settings, settings.model_copy(update={field: values[field]})):
        groups = groups_of("a")
        optimizer = build_optimizer(optimizer_groups(groups), chosen)
        for seed, scale in enumerate((1.0, 30.0, 1.0)):
            for parameter in named_parameters(groups).values():
                parameter.grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)) * scale
            optimizer.step()
        results.append(groups[0].parameters["a.w"].detach().clone())
    assert not torch.equal(*results)


def test_freezing_drops_gradients_state_and_group_and_keeps_the_rest() -> None:
    groups = groups_of("a", "b")
    optimizer = build_optimizer(optimizer_groups(groups), AdamW())
    step(optimizer, groups, 0)
    before = groups[0].parameters["a.w"].detach().clone()
    freeze(groups[0], optimizer)
    other = groups[1].parameters["b.w"].detach().clone()
    step(optimizer, groups, 1)
    assert torch.equal(groups[0].parameters["a.w"], before)
    assert not torch.equal(groups[1].parameters["b.w"], other)
    assert list(optimizer.state) == list(groups[1].parameters.values())
    assert [g["part"] for g in optimizer.param_groups] == ["b"]


def test_schedules_follow_their_formulas() -> None:
    factor = learning_rate_factor
    assert [factor(Constant(warmup_steps=4), step=s, total_steps=10) for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    linear = Linear(warmup_steps=2, min_factor=0.2)
    assert factor(linear, step=2, total_steps=12) == 1.0
    assert factor(linear, step=7, total_steps=12) == pytest.approx(0.6)
    assert factor(linear, step=12, total_steps=12) == pytest.approx(0.2)
    cosine = Cosine(min_factor=0.1)
    for s in range(10):
        expected = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * s / 10))
        assert factor(cosine, step=s, total_steps=10) == pytest.approx(expected)
    assert factor(Constant(warmup_share=0.5), step=0, total_steps=8) == 0.25
    # Fewer steps than the warm-up, and steps beyond the end, stay within bounds.
    assert 0 < factor(Cosine(warmup_steps=50), step=3, total_steps=4) < 1
    assert factor(Linear(), step=99, total_steps=10) == 0.0


def test_the_average_follows_its_formula_and_swaps_back_bit_for_bit() -> None:
    groups = groups_of("a")
    parameter = groups[0].parameters["a.w"]
    ema = Ema(named_parameters(groups), decay=0.9, update_every_steps=2, device=CPU)
    expected, updates = parameter.detach().clone().double(), 0
    for number in range(1, 9):
        with torch.no_grad():
            parameter.add_(0.1)
        ema.update(number)
        if number % 2 == 0:
            decay = min(0.9, (1 + updates) / (10 + updates))
            expected = decay * expected + (1 - decay) * parameter.detach().double()
            updates += 1
    torch.testing.assert_close(ema.averages["a.w"].double(), expected, rtol=0, atol=1e-6)
    own = parameter.detach().clone()

    def look_and_fail() -> None:
        with ema.swapped_in():
            assert torch.equal(parameter, ema.averages["a.w"])
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        look_and_fail()
    assert torch.equal(parameter, own)


def test_the_average_of_half_precision_weights_is_kept_in_full() -> None:
    parameter = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    ema = Ema({"w": parameter}, decay=0.999, update_every_steps=1, device=Device("cpu:1"))
    ema.num_updates = 10_000
    with torch.no_grad():
        parameter.add_(1.0)
    ema.update(1)
    assert ema.averages["w"].dtype == torch.float32
    assert ema.averages["w"].tolist() == pytest.approx([1.001, 1.001], abs=1e-6)


def test_min_snr_weights_are_the_papers() -> None:
    snr = torch.tensor([0.1, 1.0, 5.0, 50.0])
    epsilon = min_snr_weights(snr, gamma=5.0, prediction_type="epsilon")
    velocity = min_snr_weights(snr, gamma=5.0, prediction_type="v_prediction")
    torch.testing.assert_close(epsilon, torch.tensor([1.0, 1.0, 1.0, 0.1]))
    torch.testing.assert_close(velocity, torch.tensor([0.1 / 1.1, 0.5, 5 / 6, 5 / 51]))


def test_snr_is_the_schedules() -> None:
    process = DDPMProcess(cumulative_alphas())
    snr = process.snr(torch.tensor([0, 999]))
    assert snr[0] == pytest.approx(0.99915 / 0.00085, rel=1e-3)
    assert snr[1] == pytest.approx(0.00468, rel=1e-2)


def test_draws_are_functions_of_their_names() -> None:
    def draw(*counters: int) -> torch.Tensor:
        return torch.randn(4, generator=generator_for(1, "noise", *counters))

    assert torch.equal(draw(3, 0), draw(3, 0))
    assert not torch.equal(draw(3, 0), draw(3, 1))
    timesteps = uniform_timesteps(20_000, num_timesteps=1000, generator=generator_for(1, "t"), device=CPU)
    assert (timesteps.min().item(), timesteps.max().item()) == (0, 999)
    assert timesteps.double().mean().item() == pytest.approx(499.5, abs=8)
    assert fixed_timesteps(4, num_timesteps=1000) == [125, 375, 625, 875]
