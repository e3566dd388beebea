"""Optimizers, schedules, averages and groups against closed forms and torch's own."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import prodigyopt
import pytest
import torch
from torch import nn

from modules.diffusion.noise import fixed_timesteps, generator_for, uniform_timesteps
from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas
from modules.diffusion.timesteps.sampling import timesteps_between
from modules.diffusion.weightings import min_snr_weights
from modules.memory.guard import DeviceGuard
from modules.optim.build import build_optimizer
from modules.optim.ema import Ema
from modules.optim.optimizers.adam import Adam
from modules.optim.optimizers.adamw import AdamW
from modules.optim.optimizers.d_adaptation import Prodigy
from modules.optim.optimizers.factored import Adafactor
from modules.optim.optimizers.sums import Adagrad, RmsProp, Sgd
from modules.optim.param_groups import (
    TrainGroup,
    freeze,
    named_parameters,
    optimizer_state,
    restore_optimizer_state,
)
from modules.optim.schedule_registry import SCHEDULES, learning_rate_factor
from modules.optim.schedule_spec import ScheduleSettings
from modules.optim.schedules.constant import Constant
from modules.optim.schedules.curves import Linear, Rex
from modules.optim.schedules.usual import Cosine, CosineWithHardRestarts, CosineWithRestarts
from modules.optim.spec import OptimizerSettings
from modules.optim.updates import slicing
from modules.system.devices import CPU, Device, move


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


AS_TORCH_HAS_IT: dict[str, tuple[OptimizerSettings, type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adamw": (
        AdamW(beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.2),
        torch.optim.AdamW,
        {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2, "fused": True},
    ),
    "adamw, unfused": (AdamW(fused=False, amsgrad=True), torch.optim.AdamW, {"foreach": False, "amsgrad": True}),
    "adamw, at once": (
        AdamW(fused=False, foreach=True, maximize=True),
        torch.optim.AdamW,
        {"foreach": True, "maximize": True},
    ),
    "adamw, fused goes first": (AdamW(foreach=True), torch.optim.AdamW, {"fused": True}),
    "adam": (
        Adam(beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.2, amsgrad=True),
        torch.optim.Adam,
        {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2, "amsgrad": True, "fused": True},
    ),
    "sgd": (Sgd(), torch.optim.SGD, {}),
    "sgd, all of it": (
        Sgd(momentum=0.8, dampening=0.3, weight_decay=0.1, maximize=True),
        torch.optim.SGD,
        {"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1, "maximize": True},
    ),
    "sgd, nesterov": (
        Sgd(momentum=0.8, nesterov=True, foreach=True),
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True, "foreach": True},
    ),
    "rmsprop": (
        RmsProp(alpha=0.9, eps=1e-6, weight_decay=0.1, momentum=0.5, centered=True),
        torch.optim.RMSprop,
        {"alpha": 0.9, "eps": 1e-6, "weight_decay": 0.1, "momentum": 0.5, "centered": True},
    ),
    "adagrad": (
        Adagrad(lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.3, eps=1e-6),
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3, "eps": 1e-6},
    ),
    "prodigy": (Prodigy(), prodigyopt.Prodigy, {"slice_p": 11}),
    "prodigy, all of it": (
        Prodigy(
            beta1=0.8,
            beta2=0.95,
            beta3=0.9,
            eps=1e-6,
            weight_decay=0.1,
            use_bias_correction=True,
            safeguard_warmup=True,
            d0=1e-3,
            d_coef=2.0,
            growth_rate=1.5,
            slice_p=2,
        ),
        prodigyopt.Prodigy,
        {"betas": (0.8, 0.95), "beta3": 0.9, "eps": 1e-6, "weight_decay": 0.1, "use_bias_correction": True}
        | {"safeguard_warmup": True, "d0": 1e-3, "d_coef": 2.0, "growth_rate": 1.5, "slice_p": 2},
    ),
    "adafactor, which torch always scales": (
        Adafactor(scale_parameter=True, beta2_decay=-0.7, clip_threshold=2.0, eps=1e-30, eps2=1e-2),
        torch.optim.Adafactor,
        {"beta2_decay": -0.7, "d": 2.0, "eps": (1e-30, 1e-2), "weight_decay": 0.0},
    ),
}


@pytest.mark.parametrize("case", AS_TORCH_HAS_IT)
def test_an_optimizer_is_torchs_with_the_settings(case: str) -> None:
    settings, kind, options = AS_TORCH_HAS_IT[case]
    ours, theirs = groups_of("a"), groups_of("a")
    one = build_optimizer(ours, settings)
    other = kind(list(theirs[0].parameters.values()), lr=0.1, **options)  # type: ignore[call-arg]
    for seed in range(5):
        step(one, ours, seed)
        step(other, theirs, seed)
    moved, expected = ours[0].parameters["a.w"], theirs[0].parameters["a.w"]
    assert not torch.equal(moved, groups_of("a")[0].parameters["a.w"])
    torch.testing.assert_close(moved, expected, rtol=0, atol=0 if "scales" not in case else 1e-6)


def test_adafactor_updates_by_the_learning_rate_and_not_by_the_size_of_the_weights() -> None:
    """The first update is about the gradient's sign times the learning rate (Shazeer and Stern 2018, section 6)."""
    groups = groups_of("a")
    weights = groups[0].parameters["a.w"]
    before = weights.detach().clone()
    optimizer = build_optimizer(groups, Adafactor())
    weights.grad = torch.full_like(weights, -3.0)
    optimizer.step()
    torch.testing.assert_close(weights.detach() - before, torch.full_like(weights, 0.1))


def test_adagrad_sums_have_the_shape_of_the_updated_weight() -> None:
    """The master weight of a 16-bit weight is empty until then."""
    master_weight = nn.Parameter(torch.empty(0))
    optimizer = build_optimizer([TrainGroup("a", {"w": master_weight}, 0.1)], Adagrad(initial_accumulator_value=0.5))
    master_weight.data = torch.ones(3)
    master_weight.grad = torch.ones(3)
    optimizer.step()
    assert optimizer.state[master_weight]["sum"].tolist() == [1.5] * 3
    torch.testing.assert_close(master_weight.detach(), torch.full((3,), 1 - 0.1 / math.sqrt(1.5)))


def test_group_state_is_saved_and_restored_by_part() -> None:
    groups = groups_of("a", "b")
    optimizer = build_optimizer(groups, Sgd())
    for group in optimizer.param_groups:
        group |= {"group_state": ("d", "k"), "d": 0.25, "k": 7}
    state = optimizer_state(optimizer, named_parameters(groups))
    assert state == ({}, {f"group {part}|{key}": v for part in "ab" for key, v in (("d", 0.25), ("k", 7))})
    freeze(groups[0], optimizer)
    (left,) = optimizer.param_groups
    left |= {"d": 0.0, "k": 0}
    restore_optimizer_state(optimizer, groups, *state)
    assert (left["unit"], left["d"], left["k"]) == ("b", 0.25, 7)


@pytest.mark.parametrize(("is_fused", "kind"), [(False, "cpu"), (True, "meta")])
def test_a_step_count_is_on_the_device_of_a_fused_step(is_fused: bool, kind: str) -> None:
    """On a GPU a fused step needs its count there; any other leaves it on the CPU. `meta` stands for the GPU."""
    parameter = nn.Parameter(torch.zeros(2, device="meta"))
    optimizer = torch.optim.AdamW([parameter])
    optimizer.param_groups[0]["fused"] = is_fused
    tensors = {"w|step": torch.tensor(3.0), "w|exp_avg": torch.ones(2)}
    restore_optimizer_state(optimizer, [TrainGroup("unit", {"w": parameter}, 0.1)], tensors, {})
    assert optimizer.state[parameter]["step"].device.type == kind
    assert optimizer.state[parameter]["exp_avg"].device.type == "meta"


def test_freezing_drops_gradients_state_and_group_and_keeps_the_rest() -> None:
    groups = groups_of("a", "b")
    optimizer = build_optimizer(groups, AdamW())
    step(optimizer, groups, 0)
    before = groups[0].parameters["a.w"].detach().clone()
    freeze(groups[0], optimizer)
    other = groups[1].parameters["b.w"].detach().clone()
    step(optimizer, groups, 1)
    assert torch.equal(groups[0].parameters["a.w"], before)
    assert not torch.equal(groups[1].parameters["b.w"], other)
    assert list(optimizer.state) == list(groups[1].parameters.values())
    assert [g["unit"] for g in optimizer.param_groups] == ["b"]


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


def rates(settings: ScheduleSettings, total_steps: int = 100) -> list[float]:
    return [learning_rate_factor(settings, step=s, total_steps=total_steps) for s in range(total_steps + 1)]


def test_cosine_with_restarts_returns_without_a_jump() -> None:
    waves = rates(CosineWithRestarts(cycles=2, min_factor=0.2))
    assert [waves[s] for s in (0, 25, 50, 75, 100)] == pytest.approx([1.0, 0.2, 1.0, 0.2, 1.0])
    assert waves[10] == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(2 * math.pi * 2 * 0.1)))
    assert max(abs(a - b) for a, b in pairwise(waves)) < 0.06
    assert rates(CosineWithRestarts(cycles=0.5)) == pytest.approx(rates(Cosine()))


def test_cosine_with_hard_restarts_jumps_back_and_ends_low() -> None:
    restarted = rates(CosineWithHardRestarts(cycles=4, min_factor=0.1))
    one_fall = rates(Cosine(min_factor=0.1), 25)
    assert restarted == pytest.approx([*one_fall[:25], *one_fall[:25], *one_fall[:25], *one_fall[:25], 0.1])
    assert rates(CosineWithHardRestarts()) == pytest.approx(rates(Cosine()))
    half_done = rates(CosineWithHardRestarts(cycles=1.5))
    assert half_done[100] == pytest.approx(0.5)


def test_rex_is_the_papers_with_a_bend_of_nine_tenths() -> None:
    rex = rates(Rex(min_factor=0.5))
    for s, rate in enumerate(rex):
        rest = 1 - s / 100
        assert rate == pytest.approx(0.5 + 0.5 * rest / (0.1 + 0.9 * rest))
    assert (rex[0], rex[100]) == (1.0, 0.5)
    assert all(high > low for high, low in zip(rex, rates(Linear(min_factor=0.5))[1:], strict=False))


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"custom"}))
def test_a_schedule_stays_within_its_bounds(name: str) -> None:
    settings = SCHEDULES[name].settings(warmup_steps=10)
    assert rates(settings)[:10] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert all(0.0 <= rate <= 1.0 for rate in rates(settings))
    assert rates(settings)[10] == 1.0


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
    select = parameter.detach().clone()

    def look_and_fail() -> None:
        with ema.swapped_in():
            assert torch.equal(parameter, ema.averages["a.w"])
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        look_and_fail()
    assert torch.equal(parameter, select)


def test_the_average_of_half_precision_weights_is_kept_in_full() -> None:
    parameter = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    ema = Ema({"w": parameter}, decay=0.999, update_every_steps=1, device=Device("cpu:1"))
    ema.num_updates = 10_000
    with torch.no_grad():
        parameter.add_(1.0)
    ema.update(1)
    assert ema.averages["w"].dtype == torch.float32
    assert ema.averages["w"].tolist() == pytest.approx([1.001, 1.001], abs=1e-6)


@pytest.mark.parametrize("device", ["cpu", "cpu:1"])
def test_an_average_in_slices_is_the_same_to_the_last_bit(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = {
        f"{dtype} {n}": nn.Parameter(torch.randn(3, n + 1, generator=generator).to(dtype))
        for dtype in (torch.float32, torch.bfloat16)
        for n in range(4)
    }
    monkeypatch.setattr(slicing, "SLICE_WEIGHTS", 10)
    with DeviceGuard() as guard:
        guard.retag_in_place(weights.values(), CPU)
        ema = Ema(weights, decay=0.9, update_every_steps=1, device=Device(device))
        expected = {n: average.clone() for n, average in ema.averages.items()}
        for step in range(3):
            with torch.no_grad():
                for weight in weights.values():
                    weight.mul_(1.5)
            ema.update(step + 1)
            for name, weight in weights.items():
                current = move(weight.detach().float(), Device(device))
                expected[name].lerp_(current, 1 - min(0.9, (1 + step) / (10 + step)))
        assert {guard.tag_of(a) for a in ema.averages.values()} == {device}
    assert all(torch.equal(average, expected[n]) for n, average in ema.averages.items())
    assert list(slicing.in_slices({"a": 4, "b": 6, "c": 1, "d": 30})) == [["a", "b"], ["c"], ["d"]]


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


def test_seeds_are_functions_of_their_names() -> None:
    def draw(*counters: int) -> torch.Tensor:
        return torch.randn(4, generator=generator_for(1, "noise", *counters))

    assert torch.equal(draw(3, 0), draw(3, 0))
    assert not torch.equal(draw(3, 0), draw(3, 1))
    timesteps = uniform_timesteps(20_000, num_timesteps=1000, generator=generator_for(1, "t"), device=CPU)
    assert (timesteps.min().item(), timesteps.max().item()) == (0, 999)
    assert timesteps.double().mean().item() == pytest.approx(499.5, abs=8)
    assert fixed_timesteps(4, num_timesteps=1000) == [125, 375, 625, 875]


@pytest.mark.parametrize(
    ("strengths", "lowest", "highest"),
    [
        ((0.0, 1.0), 0, 999),
        ((0.0, 0.8), 0, 799),
        ((0.57, 0.58), 570, 579),
        ((1.0, 1.0), 999, 999),
        ((0.5, 0.5), 500, 500),
    ],
)
def test_timesteps_stay_between_the_noising_strengths(
    strengths: tuple[float, float], lowest: int, highest: int
) -> None:
    drawn = uniform_timesteps(
        20_000, num_timesteps=1000, generator=generator_for(1, "t"), device=CPU, strengths=strengths
    )
    assert (drawn.min().item(), drawn.max().item()) == (lowest, highest)
    assert timesteps_between(strengths, num_timesteps=1000) == range(lowest, highest + 1)
