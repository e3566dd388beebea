"""The steps of flow models with fresh noise, and the trust regions, against formulas by hand in float64."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from modules.objectives.policy_losses import divergence_surrogate, normalized_log_ratios
from modules.sampling.ddim_step import DdimStep
from modules.sampling.flow_step import FlowStep
from modules.sampling.gaussian_step import GaussianStep
from trainer.methods.trust_region import TrustRegion

Kind = Literal["cps", "sde"]
LEVELS = [(1.0, 0.9), (0.9, 0.6), (0.6, 0.25), (0.25, 0.1)]


def of(kind: Kind, levels: tuple[float, float], eta: float = 0.7) -> FlowStep:
    return FlowStep(1000 * levels[0], *levels, eta, kind)


@pytest.fixture
def tensors() -> list[torch.Tensor]:
    """Latents, a velocity, and the next latents."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn((3, 2, 4, 4), generator=generator) for _ in range(3)]


def by_hand(kind: Kind, s: float, n: float, eta: float, x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The mean and the standard deviation as published, in float64."""
    x, v, dt = x.double(), v.double(), n - s
    if kind == "sde":  # Flow-GRPO, eq. 9; at pure noise its divisor has the next level
        g = eta * math.sqrt(s / (1 - (n if s == 1 else s)))
        return x + (v + g**2 / (2 * s) * (x + (1 - s) * v)) * dt, g * math.sqrt(-dt)
    sigma = n * math.sin(eta * math.pi / 2)
    return (1 - n) * (x - s * v) + math.sqrt(n**2 - sigma**2) * (x + (1 - s) * v), sigma


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("kind", ["cps", "sde"])
def test_a_step_is_the_published_gaussian(kind: Kind, levels: tuple[float, float], tensors: list[torch.Tensor]) -> None:
    x, v, following = tensors
    step = of(kind, levels)
    mean, sigma = by_hand(kind, *levels, 0.7, x, v)
    assert step.sigma == pytest.approx(sigma, rel=1e-12)
    torch.testing.assert_close(step.mean(v, x).double(), mean, rtol=1e-5, atol=1e-6)
    expected = torch.distributions.Normal(mean, sigma).log_prob(following.double()).mean(dim=(1, 2, 3))
    found = step.log_prob(following, step.mean(v, x))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    moved = step.mean(v + 1, x) - step.mean(v, x)
    assert step.influence == pytest.approx(abs(moved.mean().item()) / sigma, rel=1e-4)


@pytest.mark.parametrize("kind", ["cps", "sde"])
def test_without_noise_it_is_the_step_of_euler_to_the_bit(kind: Kind, tensors: list[torch.Tensor]) -> None:
    x, v, _ = tensors
    euler = x + (0.6 - 0.9) * v
    assert torch.equal(of(kind, (0.9, 0.6), eta=0.0).mean(v, x), euler)
    last = of(kind, (0.3, 0.0))
    assert (last.sigma, last.influence) == (0.0, 0.0)
    assert torch.equal(last.mean(v, x), x - 0.3 * v)
    assert torch.equal(last.log_prob(x, v), torch.zeros(3))


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("eta", [0.3, 0.7, 1.0])
def test_cps_keeps_the_shares_of_image_and_noise(levels: tuple[float, float], eta: float) -> None:
    """With the exact velocity of an image and a noise; of the next noise a part is old and the rest new."""
    step = of("cps", levels, eta)
    level, following = levels
    image, noise = torch.tensor([[[[1.0]]]]), torch.zeros(1, 1, 1, 1)
    assert step.mean(noise - image, (1 - level) * image).item() == pytest.approx(1 - following, abs=1e-6)
    old = step.mean(torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1), level)).item()
    assert old**2 + step.sigma**2 == pytest.approx(following**2, abs=1e-6)


def test_flow_sde_adds_more_noise_than_it_removes() -> None:
    """For large steps; that is what CPS corrects. For small ones both are the same."""

    def excess(levels: tuple[float, float]) -> float:
        step = of("sde", levels)
        old = step.mean(torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1), levels[0])).item()
        return math.sqrt(old**2 + step.sigma**2) / levels[1] - 1

    assert excess((0.5, 0.25)) > 0.02
    assert abs(excess((0.5, 0.499))) < 1e-5


# ---- trust regions


@pytest.fixture
def policies(tensors: list[torch.Tensor]) -> tuple[FlowStep, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A step, the mean that sampled, the mean now, the fresh noise, and the next latents."""
    x, v, noise = tensors
    step = of("cps", (0.6, 0.25))
    old = step.mean(v, x)
    new = step.mean(v + 0.01 * torch.randn(v.shape, generator=torch.Generator().manual_seed(9)), x)
    return step, old, new, noise, step.next_latents(old, noise)


def test_the_normalized_log_ratio_is_the_noise_times_the_change_of_the_mean(
    policies: tuple[FlowStep, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """GRPO-Guard, eq. 8: without bias, and of the same size in every step."""
    step, old, new, noise, following = policies
    ratios_B = step.log_prob(following, new) - step.log_prob(following, old)
    normalized_B = normalized_log_ratios(ratios_B, step.kl(new, old), sigma=step.sigma)
    by_hand_B = (noise.double() * (new.double() - old.double())).mean(dim=(1, 2, 3))
    torch.testing.assert_close(normalized_B.double(), by_hand_B, rtol=1e-2, atol=1e-7)
    exact = torch.equal(normalized_log_ratios(torch.zeros(3), step.kl(old, old), sigma=step.sigma), torch.zeros(3))
    assert exact, "the first ratio is exactly 1"


def test_its_loss_is_divided_by_the_length_of_the_step() -> None:
    region = TrustRegion("normalized", clip_range=0.5)
    step = of("sde", (0.6, 0.2))
    log_ratios_B, divergences_B = torch.tensor([0.02, -0.01]), torch.tensor([0.001, 0.002])
    found = region.surrogate(step, log_ratios_B, torch.tensor([1.0, -2.0]), divergences_B)
    ratios = [math.exp(step.sigma * (a + b)) for a, b in ((0.02, 0.001), (-0.01, 0.002))]
    assert found.losses_B.tolist() == pytest.approx([-ratios[0] / 0.4, 2 * ratios[1] / 0.4], rel=1e-5)
    assert not found.is_outside_B.any()
    with pytest.raises(ValueError, match="needs the means"):
        region.surrogate(step, log_ratios_B, torch.ones(2), None)


@pytest.mark.parametrize("step", [of("sde", (0.6, 0.2), eta=0.0), DdimStep(500, 0.3, 0.6, "epsilon")])
def test_the_length_is_the_reach_of_a_mean_without_noise(step: GaussianStep, tensors: list[torch.Tensor]) -> None:
    x, v, _ = tensors
    moved = step.mean(v + 1, x) - step.mean(v, x)
    assert step.reach == pytest.approx(abs(moved.mean().item()), rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "divergence", "is_trained"),
    [
        (1.1, 2.0, 2e-5, False),  # beyond, and the gradient leads further away
        (0.9, -2.0, 2e-5, False),
        (0.9, 2.0, 2e-5, True),  # beyond, but it leads back
        (1.1, -2.0, 2e-5, True),
        (1.1, 2.0, 0.5e-5, True),  # within, whatever the ratio
        (1.0, 2.0, 2e-5, True),
    ],
)
def test_the_divergence_stops_only_what_moves_further_away(
    ratio: float, advantage: float, divergence: float, is_trained: bool
) -> None:
    """Flow-DPPO: the asymmetric mask."""
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    given = torch.tensor([advantage]), torch.tensor([divergence])
    loss = divergence_surrogate(log_ratio, *given, limit=1e-5)
    assert loss.item() == pytest.approx(-advantage * ratio)
    (gradient,) = torch.autograd.grad(loss.sum() + 0 * log_ratio.sum(), [log_ratio])
    assert gradient.item() == pytest.approx(-advantage * ratio if is_trained else 0.0)
    found = TrustRegion("divergence", divergence_limit=1e-5).surrogate(of("cps", (0.6, 0.2)), log_ratio, *given)
    assert found.losses_B.item() == loss.item()
    assert found.is_outside_B.tolist() == [divergence > 1e-5]


def test_a_step_between_levels_that_are_rounded_to_pure_noise_moves_nothing() -> None:
    step = FlowStep(1000.0, 1.0, 1.0, 0.7, "sde")
    latents, velocity = torch.full((1, 1, 2, 2), 0.5), torch.ones((1, 1, 2, 2))
    assert step.sigma == step.influence == 0.0
    assert torch.equal(step.mean(velocity, latents), latents)
