"""Policy gradients of the denoising loop in closed form: the clipped surrogate of PPO for each denoising step.

A rollout samples x_N, ..., x_0 with a policy p_old, whose steps are Gaussians (`modules/sampling/ddim_step.py`). With
the log-probabilities l = log p(x_{t-1} | x_t) as means over the dimensions of the latents, and the advantage A of the
image (Schulman et al. 2017, eq. 7; Black et al. 2023, section 4.3; Liu et al. 2025):

    rho = exp(l - l_old)
    L = max(-A rho, -A clip(rho, 1 - c, 1 + c)) + beta KL(p || p_ref)

Because of the mean over dimensions the clip range c is small: 1e-4 as published. The log-ratio of larger latents
spreads less, by one over the square root of their size, so the same range clips less of them. All of it is computed in
float32.

Two other trust regions use that the steps are Gaussians around means mu and mu_old with the same sigma: GRPO-Guard's
(`normalized_log_ratios`) and Flow-DPPO's (`divergence_surrogate`).
"""

from __future__ import annotations

import torch


def log_ratios(log_probs_B: torch.Tensor, old_log_probs_B: torch.Tensor) -> torch.Tensor:
    """Return `log rho` of each sample, float32 of shape (B,), with its graph."""
    return log_probs_B.float() - old_log_probs_B.float()


def normalized_log_ratios(log_ratios_B: torch.Tensor, divergences_B: torch.Tensor, *, sigma: float) -> torch.Tensor:
    """Return the log-ratios of GRPO-Guard of each sample, float32 of shape (B,), with their graph.

    `sigma (log rho + |mu - mu_old|^2 / (2 sigma^2))` (Wang et al. 2025, arXiv 2510.22319, eq. 8). With the fresh noise
    z of the step it is the mean of `z (mu - mu_old)`: it has no bias, which makes rho smaller than 1 for any update,
    and its spread does not depend on sigma, so that one clip range fits all steps. `divergences_B` is the second term.
    """
    return sigma * (log_ratios_B.float() + divergences_B.float())


def divergence_surrogate(
    log_ratios_B: torch.Tensor, advantages_B: torch.Tensor, divergences_B: torch.Tensor, *, limit: float
) -> torch.Tensor:
    """Return `-A rho` of each sample, float32 of shape (B,), without a gradient outside of the trust region.

    Flow-DPPO (Ping et al. 2026, arXiv 2606.11025): a sample has no gradient if its step has moved away from the policy
    that sampled by more than `limit`, as the exact divergence `|mu - mu_old|^2 / (2 sigma^2)` states, and the gradient
    would move it further: `A > 0` and `rho > 1`, or `A < 0` and `rho < 1`.
    """
    ratios_B, advantages_B = log_ratios_B.float().exp(), advantages_B.float()
    losses_B = -advantages_B * ratios_B
    moves_away_B = advantages_B * log_ratios_B.detach().float() > 0
    return torch.where(moves_away_B & is_beyond(divergences_B, limit=limit), losses_B.detach(), losses_B)


def is_beyond(divergences_B: torch.Tensor, *, limit: float) -> torch.Tensor:
    """Return which samples have a divergence above the limit (B)."""
    return divergences_B.detach().float() > limit


def clipped_surrogate(log_ratios_B: torch.Tensor, advantages_B: torch.Tensor, *, clip_range: float) -> torch.Tensor:
    """Return `max(-A rho, -A clip(rho, 1 - c, 1 + c))` of each sample, float32 of shape (B,).

    It is a lower bound of the gain: a sample whose ratio is past the range in the direction of its advantage gets no
    gradient. At the first update rho is 1, so its value is -A and its gradient REINFORCE's.
    """
    ratios_B, advantages_B = log_ratios_B.float().exp(), advantages_B.float()
    clipped_B = ratios_B.clamp(1 - clip_range, 1 + clip_range)
    return torch.maximum(-advantages_B * ratios_B, -advantages_B * clipped_B)


def clip_fraction(log_ratios_B: torch.Tensor, *, clip_range: float) -> torch.Tensor:
    """Return the share of samples whose ratio is outside of the clip range, shape ()."""
    return is_outside(log_ratios_B, clip_range=clip_range).float().mean()


def is_outside(log_ratios_B: torch.Tensor, *, clip_range: float) -> torch.Tensor:
    """Return which samples have a ratio outside of the clip range (B).

    Samples that are past it in the direction of their advantage have no gradient; the others are drawn back.
    """
    return (log_ratios_B.detach().float().exp() - 1).abs() > clip_range


def approx_kl(log_ratios_B: torch.Tensor) -> torch.Tensor:
    """Return `0.5 mean((l - l_old)^2)`, how far the policy has moved since it sampled, shape ()."""
    return 0.5 * log_ratios_B.detach().float().square().mean()


def reward_losses(rewards_B: torch.Tensor, *, loss: str, target: float) -> torch.Tensor:
    """Return each sample's loss, float32 of shape (B,).

    - "mean": `-r`, with the same gradient as TRL's `10 - r` (AlignProp, Prabhudesai et al. 2023, eq. 3).
    - "target": `|r - target|`, as the authors' code has it for the aesthetic reward with 10.
    - "hinge": `max(0, target - r)`, zero from the target on (ReFL, Xu et al. 2023, section 3.1): the simplest guard
      against overoptimization.
    """
    rewards_B = rewards_B.float()
    match loss:
        case "mean":
            return -rewards_B
        case "target":
            return (rewards_B - target).abs()
        case "hinge":
            return (target - rewards_B).clamp(min=0)
        case _:
            raise ValueError(f"Unknown reward loss {loss!r}; choose mean, target or hinge.")


def reward_loss(
    rewards_B: torch.Tensor, *, loss: str, target: float, weight: float, weights_B: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `weight` times the mean loss of the samples that have a score, shape (); `weights_B` are per sample.

    Samples without a score (NaN) are left out of the mean; without any score the loss is 0, with its graph.
    """
    is_scored_B = ~rewards_B.isnan()
    losses_B = reward_losses(torch.where(is_scored_B, rewards_B, target), loss=loss, target=target)
    if weights_B is not None:
        losses_B = losses_B * weights_B
    return weight * torch.where(is_scored_B, losses_B, 0.0).sum() / is_scored_B.sum().clamp(min=1)


def num_scored(rewards_B: torch.Tensor) -> int:
    """Return how many samples have a score. Waits for the device."""
    return int((~rewards_B.isnan()).sum())
