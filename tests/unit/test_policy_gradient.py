"""The clipped surrogate: its value and gradient, where it clips, and what it reports."""

from __future__ import annotations

import math

import pytest
import torch

from modules.objectives.policy_gradient import approx_kl, clip_fraction, clipped_surrogate, log_ratios


def surrogate(ratio: float, advantage: float) -> tuple[float, float]:
    """The loss of one sample, and its gradient with respect to the log-probability."""
    log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
    loss = clipped_surrogate(log_ratios(log_prob, torch.zeros(1)), torch.tensor([advantage]), clip_range=0.2)
    [gradient] = torch.autograd.grad(loss.sum(), [log_prob])
    return loss.item(), gradient.item()


@pytest.mark.parametrize("advantage", [-1.5, 0.5])
def test_on_policy_it_is_reinforce(advantage: float) -> None:
    assert surrogate(1.0, advantage) == pytest.approx((-advantage, -advantage))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.1, 2.0, -2.2, -2.2),  # within the range
        (1.3, 2.0, -2.4, 0.0),  # already much more likely: no reason to go on
        (0.7, 2.0, -1.4, -1.4),  # less likely, although it is good: back
        (0.7, -2.0, 1.6, 0.0),
        (1.3, -2.0, 2.6, 2.6),
        (1.3, 0.0, 0.0, 0.0),
    ],
)
def test_it_clips_in_the_direction_of_the_advantage(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    assert surrogate(ratio, advantage) == pytest.approx((loss, gradient), abs=1e-6)


def test_what_it_reports() -> None:
    log_ratios_B = torch.tensor([0.0, 0.1, -0.3, 0.3])
    assert clip_fraction(log_ratios_B, clip_range=0.2).item() == 0.5
    assert approx_kl(log_ratios_B).item() == pytest.approx(0.5 * (0.01 + 0.09 + 0.09) / 4)
    assert clip_fraction(torch.zeros(3), clip_range=1e-4).item() == approx_kl(torch.zeros(3)).item() == 0.0


def test_half_precision_is_computed_with_in_float32() -> None:
    assert log_ratios(torch.ones(1).bfloat16(), torch.ones(1)).dtype == torch.float32
    assert clipped_surrogate(torch.zeros(1).half(), torch.ones(1).half(), clip_range=1e-4).dtype == torch.float32
