"""Timestep distributions against their densities, the draws, strata, and the histogram of the window."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.diffusion.flow_convention import ConstantShift, FlowConvention, TokenShift, flow_matching
from modules.diffusion.noise import Rows, generator_for
from modules.diffusion.process_spec import DDPM
from modules.diffusion.timesteps.distributions import DISTRIBUTIONS
from modules.diffusion.timesteps.drawing import BatchPosition, draw_timesteps, stratified_uniforms
from modules.diffusion.timesteps.sampling import Stratification, TimestepSampling
from modules.system.devices import CPU
from tests.unit.strategies import few

N = 1000


def draws(sampling: TimestepSampling, num_samples: int, *, step: int = 0, **options: Any) -> torch.Tensor:
    return draw_timesteps(
        sampling, BatchPosition(step, 0, num_samples), run_seed=7, num_timesteps=N, device=CPU, **options
    )


def logit(x: float) -> float:
    return math.log(x / (1 - x))


# Each density up to a factor, as its source states it, with its weight and bias.
DENSITIES: list[tuple[str, float, float, Callable[[float], float]]] = [
    ("uniform", 0.0, 0.0, lambda x: 1.0),
    ("sigmoid", 6.0, 0.1, lambda x: 1 / (1 + math.exp(-6.0 * (x - 0.6)))),
    ("sigmoid", -3.0, -0.2, lambda x: 1 / (1 + math.exp(3.0 * (x - 0.3)))),
    ("sigmoid", 0.0, 0.0, lambda x: 1.0),
    ("logit_normal", 0.0, 0.0, lambda x: math.exp(-(logit(x) ** 2) / 2) / (x * (1 - x))),
    ("logit_normal", 0.5, -0.7, lambda x: math.exp(-((logit(x) + 0.7) ** 2) / 2 / 1.5**2) / (x * (1 - x))),
    ("cos_map", 0.0, 0.0, lambda x: 2 / (math.pi - 2 * math.pi * x + 2 * math.pi * x**2)),
    ("inverted_parabola", 7.7, 0.0, lambda x: max(0.0, 2 - 7.7 * (x - 0.5) ** 2)),
    ("inverted_parabola", 30.0, 0.4, lambda x: max(0.0, 2 - 30.0 * (x - 0.9) ** 2)),
    ("inverted_parabola", -4.0, 0.0, lambda x: 2 + 4.0 * (x - 0.5) ** 2),
    ("beta", 2.0, 5.0, lambda x: x * (1 - x) ** 4),
    ("beta", 1.0, 1.0, lambda x: 1.0),
    ("beta", 3.5, 1.0, lambda x: x**2.5),
]


@pytest.mark.parametrize(("name", "weight", "bias", "density"), DENSITIES)
def test_each_distribution_has_its_density(
    name: str, weight: float, bias: float, density: Callable[[float], float]
) -> None:
    bins = 20
    described = TimestepSampling(name, weight, bias).describe(num_bins=bins, num_timesteps=N)
    heights = [sum(density((b + (i + 0.5) / 40) / bins) for i in range(40)) for b in range(bins)]
    assert described == pytest.approx([height / sum(heights) for height in heights], abs=2e-4)


@pytest.mark.parametrize("scale", [1.3, 0.0, -0.8])
def test_the_heavy_tail_is_the_map_of_its_source(scale: float) -> None:
    """Of uniform numbers, by eq. 20 of Esser et al. 2024, as it stands there."""
    u = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    mapped = 1 - u - scale * (torch.cos(math.pi / 2 * u) ** 2 - 1 + u)
    counts = torch.bincount((mapped * 20).long(), minlength=20)
    described = TimestepSampling("heavy_tail", scale).describe(num_bins=20, num_timesteps=N)
    assert described == pytest.approx((counts / 200_000).tolist(), abs=2e-5)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("strengths", [(0.0, 1.0), (0.1, 0.75)])
def test_draws_have_the_described_frequencies(name: str, shift: float, strengths: tuple[float, float]) -> None:
    """By a chi-square test with a fixed seed: the 99.9 % point of 19 degrees of freedom is 43.8."""
    sampling = TimestepSampling(name, 1.5, 0.5, shift=shift, strengths=strengths)
    expected = torch.tensor(sampling.describe(num_bins=20, num_timesteps=N), dtype=torch.float64)
    assert float(expected.sum()) == pytest.approx(1.0, abs=1e-12)
    drawn = draws(sampling, 20_000)
    assert drawn.dtype == torch.int64
    found = torch.bincount(drawn * 20 // N, minlength=20)
    assert not found[expected == 0].any()
    is_possible = expected * 20_000 > 5
    wanted = expected[is_possible] * 20_000
    assert float(((found[is_possible] - wanted) ** 2 / wanted).sum()) < 43.8


@pytest.mark.parametrize(
    ("name", "weight", "bias"),
    [
        ("sigmoid", 1000.0, 1000.0),
        ("sigmoid", -1000.0, 1000.0),
        ("sigmoid", 1000.0, -0.5),
        ("logit_normal", -0.999, 1000.0),
        ("beta", 1e-4, 1e-4),
        ("beta", 1000.0, 1000.0),
        ("beta", 0.01, 1000.0),
        ("inverted_parabola", 1000.0, 0.5),
        ("heavy_tail", -1.0, 0.0),
    ],
)
@pytest.mark.parametrize("shift", [1.0, 100.0, 0.01])
def test_extreme_parameters_still_give_a_distribution(name: str, weight: float, bias: float, shift: float) -> None:
    sampling = TimestepSampling(name, weight, bias, shift=shift)
    assert not sampling.problem
    probabilities = sampling.probabilities(num_timesteps=N)
    assert min(probabilities) >= 0
    assert math.fsum(probabilities) == pytest.approx(1.0, abs=1e-12)
    assert 0 <= int(draws(sampling, 500).min()) <= int(draws(sampling, 500).max()) < N


@pytest.mark.parametrize(
    ("name", "weight", "bias"),
    [
        ("logit_normal", -1.0, 0.0),
        ("heavy_tail", 1.8, 0.0),
        ("heavy_tail", -1.1, 0.0),
        ("inverted_parabola", 1000.0, 3.0),
        ("beta", 0.0, 0.0),
        ("beta", 2.0, -1.0),
    ],
)
def test_parameters_without_a_distribution_are_named(name: str, weight: float, bias: float) -> None:
    assert DISTRIBUTIONS[name].label in TimestepSampling(name, weight, bias).problem


def test_the_default_draws_are_as_ever() -> None:
    generator = generator_for(7, "timesteps", 3, 0)
    assert torch.equal(draws(TimestepSampling(), 9, step=3), torch.randint(0, N, (9,), generator=generator))


def test_a_shift_moves_the_timesteps_by_its_formula() -> None:
    """With the same uniform numbers, each timestep is that of the formula; not twice, as in OneTrainer's sigmoid."""
    for name in ("sigmoid", "logit_normal", "cos_map"):
        plain, shifted = (draws(TimestepSampling(name, 2.0, 0.1, shift=s), 4000) for s in (1.0, 3.0))
        x = (plain.double() + 0.5) / N
        moved = 3 * x / (1 + 2 * x) * N
        assert float((moved - shifted).abs().max()) <= 2.5


def test_the_dynamic_shift_follows_the_size_of_the_image() -> None:
    dynamic = TimestepSampling("logit_normal", is_dynamic=True)
    plain, doubled = TimestepSampling("logit_normal"), TimestepSampling("logit_normal", shift=2.0)
    assert torch.equal(draws(dynamic, 50), draws(plain, 50))  # the model's own resolution
    larger = DDPM.size_shift(width_px=1024, height_px=1024, own_px=512)
    assert torch.equal(draws(dynamic, 50, size_shift=larger), draws(doubled, 50))
    assert dynamic.describe(num_bins=10, size_shift=larger) == doubled.describe(num_bins=10)


@pytest.mark.parametrize("stratification", ["stratified", "antithetic"])
def test_stratified_numbers_are_one_from_each_part(stratification: Stratification) -> None:
    for num_samples in (1, 2, 7, 16):
        uniforms = stratified_uniforms(num_samples, stratification, generator_for(1, "t", num_samples))
        assert sorted((uniforms * num_samples).long().tolist()) == list(range(num_samples))
        if stratification == "antithetic" and num_samples % 2 == 0:
            assert torch.allclose(uniforms.sort().values, (1 - uniforms).sort().values)


@pytest.mark.parametrize("stratification", ["stratified", "antithetic"])
def test_each_stratified_draw_keeps_the_distribution(stratification: Stratification) -> None:
    """The first of each batch alone: its expectation, and so that of the loss, does not change."""
    sampling = TimestepSampling("logit_normal", stratification=stratification)
    first = torch.stack([draws(sampling, 4, step=step)[0] for step in range(4000)])
    expected = torch.tensor(sampling.describe(num_bins=20)) * 4000
    found = torch.bincount(first * 20 // N, minlength=20)
    is_possible = expected > 5
    assert float(((found - expected)[is_possible] ** 2 / expected[is_possible]).sum()) < 43.8


def test_the_micro_batches_of_a_group_share_its_strata() -> None:
    sampling = TimestepSampling(stratification="stratified")
    sizes, drawn, start = (2, 1, 3, 2), [], 0
    for number, size in enumerate(sizes):
        position = BatchPosition(5, number, size, group_start=start, group_samples=8)
        drawn.append(draw_timesteps(sampling, position, run_seed=7, num_timesteps=N, device=CPU))
        start += size
    assert sorted((torch.cat(drawn) * 8 // N).tolist()) == list(range(8))


def test_stratified_timesteps_lower_the_variance_of_the_mean_loss() -> None:
    """The variance over batches of 8 of the mean of a loss that falls with t, as the denoising loss does."""

    def variance(stratification: Stratification) -> float:
        sampling = TimestepSampling(stratification=stratification)
        batches = torch.stack([draws(sampling, 8, step=step) for step in range(1500)])
        return float(torch.exp(-3 * batches / N).mean(dim=1).var())

    independent, stratified, antithetic = variance("off"), variance("stratified"), variance("antithetic")
    assert stratified < independent / 30  # in theory 1 / 64 of it for a line
    assert antithetic < 0.8 * stratified


# -- continuous timesteps, of flow models


@st.composite
def samplings(draw: st.DrawFn) -> TimestepSampling:
    """Any distribution with parameters that it accepts, shifted, over any range of strengths."""
    low, high = sorted(draw(st.tuples(st.floats(0, 1), st.floats(0, 1))))
    sampling = TimestepSampling(
        draw(st.sampled_from(sorted(DISTRIBUTIONS))),
        draw(st.floats(-20, 20)),
        draw(st.floats(-3, 3)),
        shift=draw(st.floats(0.05, 20)),
        is_dynamic=draw(st.booleans()),
        strengths=(low, high),
        stratification=draw(st.sampled_from(["off", "stratified", "antithetic"])),
    )
    return TimestepSampling(sampling.distribution, 1.5, 0.5) if sampling.problem else sampling


@few
@given(samplings(), st.integers(0, 2**31), st.floats(0.2, 5))
def test_continuous_draws_are_in_range_and_reproducible(sampling: TimestepSampling, step: int, size: float) -> None:
    low, high = sampling.strengths
    drawn = draws(sampling, 64, step=step, is_continuous=True, size_shift=size)
    assert drawn.dtype == torch.float32
    assert low * N - 0.5 <= float(drawn.min())
    assert float(drawn.max()) <= max(high * N + 0.5, round(low * N) + 1)
    assert torch.equal(drawn, draws(sampling, 64, step=step, is_continuous=True, size_shift=size))


@few
@given(samplings(), st.integers(0, 1000))
def test_continuous_draws_are_the_discrete_ones_and_a_fraction(sampling: TimestepSampling, step: int) -> None:
    """The same uniform numbers give the same thousandth, so that the histogram of the window holds for both."""
    if sampling.is_plain:
        sampling = TimestepSampling(shift=1.5)
    discrete, drawn = (draws(sampling, 64, step=step, is_continuous=c) for c in (False, True))
    fractions = drawn.double() - discrete
    assert float(fractions.min()) >= -1e-3
    assert float(fractions.max()) <= 1 + 1e-3


@few
@given(samplings(), st.floats(1.0, 8.0), st.integers(0, 1000))
def test_a_larger_shift_only_moves_to_more_noise(sampling: TimestepSampling, larger: float, step: int) -> None:
    plain, moved = (
        draws(replace(sampling, shift=sampling.shift * s), 64, step=step, is_continuous=True) for s in (1.0, larger)
    )
    assert bool((moved >= plain - 1e-2).all())


def test_continuous_draws_have_the_described_frequencies_and_fill_the_range() -> None:
    sampling = TimestepSampling("logit_normal", shift=3.0)
    drawn = draws(sampling, 20_000, is_continuous=True)
    expected = torch.tensor(sampling.describe(num_bins=20, num_timesteps=N), dtype=torch.float64) * 20_000
    found = torch.bincount((drawn * 20 / N).long().clamp(max=19), minlength=20)
    is_possible = expected > 5
    assert float(((found - expected)[is_possible] ** 2 / expected[is_possible]).sum()) < 43.8
    fractions = drawn.double() % 1
    assert float(fractions.mean()) == pytest.approx(0.5, abs=0.01)
    assert draws(TimestepSampling(), 20_000, is_continuous=True).unique().numel() > 19_000


def test_processes_that_share_a_micro_batch_draw_the_timesteps_of_the_whole() -> None:
    whole = draws(TimestepSampling(), 6, is_continuous=True)
    parts = [
        draw_timesteps(
            TimestepSampling(),
            BatchPosition(0, 0, 3, rows=Rows(first, 6)),
            run_seed=7,
            num_timesteps=N,
            device=CPU,
            is_continuous=True,
        )
        for first in (0, 3)
    ]
    assert torch.equal(torch.cat(parts), whole)


FLOW_SHIFTS = {"none": ConstantShift(3.0), "constant": ConstantShift(3.0), "by tokens": TokenShift()}


@pytest.mark.parametrize("shift", FLOW_SHIFTS)
@pytest.mark.parametrize(
    ("name", "theirs", "weight", "bias"),
    [
        ("uniform", {"weighting_scheme": "none"}, 0.0, 0.0),
        ("logit_normal", {"weighting_scheme": "logit_normal", "logit_mean": 0.4, "logit_std": 1.5}, 0.5, 0.4),
        ("heavy_tail", {"weighting_scheme": "mode", "mode_scale": 1.29}, 1.29, 0.0),
    ],
)
def test_flow_timesteps_have_the_densities_of_diffusers(
    name: str, theirs: dict[str, Any], weight: float, bias: float, shift: str
) -> None:
    """Of its training scripts, with the shift of the settings: static, or by the tokens of the image."""
    from diffusers.training_utils import compute_density_for_timestep_sampling

    is_dynamic = shift == "by tokens"
    static = 3.0 if shift == "constant" else 1.0
    process = flow_matching(FlowConvention(shift=FLOW_SHIFTS[shift]))
    size_shift = process.size_shift(width_px=1024, height_px=1024, own_px=1024)
    u = compute_density_for_timestep_sampling(
        batch_size=400_000, generator=torch.Generator().manual_seed(3), **theirs
    ).double()
    factor = math.exp(1.15) if is_dynamic else static
    sigma = factor * u / (1 + (factor - 1) * u)
    counts = torch.bincount((sigma * 20).long().clamp(max=19), minlength=20) / len(u)
    sampling = TimestepSampling(name, weight, bias, shift=static, is_dynamic=is_dynamic)
    described = sampling.describe(num_bins=20, num_timesteps=N, size_shift=size_shift)
    assert described == pytest.approx(counts.tolist(), abs=3e-3)


@pytest.mark.parametrize("side", [256, 512, 1024, 2048])
def test_the_dynamic_shift_of_a_flow_is_the_rule_of_its_model(side: int) -> None:
    """By its tokens where it has such a rule; with a constant shift it is the paper's `sqrt(m / n)`, as for DDPM."""
    by_tokens = flow_matching(FlowConvention(shift=TokenShift()))
    constant = flow_matching(FlowConvention(shift=ConstantShift(3.0)))
    found = by_tokens.size_shift(width_px=side, height_px=side, own_px=1024)
    assert found == TokenShift().factor((side // 16) ** 2)
    for process in (constant, DDPM):
        assert process.size_shift(width_px=side, height_px=side, own_px=1024) == side / 1024
