"""Policy gradients of the denoising loop in closed form: the clipped surrogate of PPO for each denoising step.

A rollout samples x_N, ..., x_0 with a policy p_old, whose steps are Gaussians (`modules/sampling/ddim_step.py`). With
the log-probabilities l = log p(x_{t-1} | x_t) as means over the dimensions of the latents, and the advantage A of the
image (Schulman et al. 2017, eq. 7; Black et al. 2023, section 4.3; Liu et al. 2025):

    rho = exp(l - l_old)
    L = max(-A rho, -A clip(rho, 1 - c, 1 + c)) + beta KL(p || p_ref)

Because of the mean over dimensions the clip range c is small: 1e-4 as published. The log-ratio of larger latents
spreads less, by one over the square root of their size, so the same range clips less of them. All of it is computed in
float32.
"""

from __future__ import annotations

import torch


def log_ratios(log_probs_B: torch.Tensor, old_log_probs_B: torch.Tensor) -> torch.Tensor:
    """Return `log rho` of each sample, float32 of shape (B,), with its graph."""
    return log_probs_B.float() - old_log_probs_B.float()


def clipped_surrogate(log_ratios_B: torch.Tensor, advantages_B: torch.Tensor, *, clip_range: float) -> torch.Tensor:
    """Return `max(-A rho, -A clip(rho, 1 - c, 1 + c))` of each sample, float32 of shape (B,).

    It is a lower bound of the gain: a sample whose ratio is past the range in the direction of its advantage gets no
    gradient. At the first update rho is 1, so its value is -A and its gradient that of REINFORCE.
    """
    ratios_B, advantages_B = log_ratios_B.float().exp(), advantages_B.float()
    clipped_B = ratios_B.clamp(1 - clip_range, 1 + clip_range)
    return torch.maximum(-advantages_B * ratios_B, -advantages_B * clipped_B)


def clip_fraction(log_ratios_B: torch.Tensor, *, clip_range: float) -> torch.Tensor:
    """Return the share of samples whose ratio is outside of the clip range, shape ()."""
    return is_outside(log_ratios_B, clip_range=clip_range).float().mean()


def is_outside(log_ratios_B: torch.Tensor, *, clip_range: float) -> torch.Tensor:
    """Return which samples have a ratio outside of the clip range (B).

    Those that are past it in the direction of their advantage have no gradient; the others are drawn back.
    """
    return (log_ratios_B.detach().float().exp() - 1).abs() > clip_range


def approx_kl(log_ratios_B: torch.Tensor) -> torch.Tensor:
    """Return `0.5 mean((l - l_old)^2)`, how far the policy has moved since it sampled, shape ()."""
    return 0.5 * log_ratios_B.detach().float().square().mean()
