"""Losses for differentiable rewards: lower loss means higher reward."""

from __future__ import annotations

import torch


def reward_losses(rewards_B: torch.Tensor, *, loss: str, target: float) -> torch.Tensor:
    """Return each sample's loss, float32 of shape (B,).

    "mean": `-r`, whose gradient is that of TRL's `10 - r` (AlignProp, Prabhudesai et al. 2023, eq. 3).
    "target": `|r - target|`, as the authors' code has it for the aesthetic reward with 10.
    "hinge": `max(0, target - r)`, zero from the target on (ReFL, Xu et al. 2023, section 3.1): the simplest guard
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
