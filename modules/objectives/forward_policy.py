"""Policy losses on the forward process: a model learns from its finished images, newly noised, and their advantages.

They need no log-probabilities of a denoising loop, so any sampler will do. Each image x_0 is noised to x_t, and two
models predict it: the trained one, and the old one, which sampled the images and has no gradient. Shapes: B images, C,
H, W their latents; all results are float32.
"""

from __future__ import annotations

import torch

from modules.objectives.denoise import sample_losses, squared_errors

_SMALLEST_ERROR = 1e-5  # that the errors of an image are divided by


def optimality(advantages_B: torch.Tensor, *, limit: float) -> torch.Tensor:
    """Return the probability that an image is a good one, (B,): `r = 1/2 + 1/2 clip(A / c, -1, 1)` with c = `limit`.

    Zheng et al. 2025 (arXiv 2509.16117), section 3.3, Optimality Reward. It is 1/2 for an image that is as good as the
    others of its prompt.
    """
    return 0.5 + 0.5 * (advantages_B.float() / limit).clamp(-1, 1)


def negative_aware_losses(
    clean_BCHW: torch.Tensor, new_BCHW: torch.Tensor, old_BCHW: torch.Tensor, optimality_B: torch.Tensor, *, beta: float
) -> torch.Tensor:
    """Return the loss of DiffusionNFT of each image, (B,), from both predictions of x_0.

    Zheng et al. 2025, eq. 5, with the implicit policies v+ = (1 - b) v_old + b v and v- = (1 + b) v_old - b v:

        L = r |v+ - v|^2 + (1 - r) |v- - v|^2

    A velocity, a noise and an x_0 that are predicted from the same x_t are affine functions of each other, and the
    factors of both policies have the sum 1. So the policies are computed from the predictions of x_0, whatever the
    model predicts, as is the error of each, divided by its mean absolute value over C, H, W without gradient (section
    3.3, Adaptive Loss Weighting). The whole is divided by b, as in the authors' code, so that the gradient at the first
    step on a rollout does not depend on it.
    """
    old_BCHW = old_BCHW.detach()
    positive_B = _normalized_errors(clean_BCHW, torch.lerp(old_BCHW, new_BCHW, beta))
    negative_B = _normalized_errors(clean_BCHW, torch.lerp(old_BCHW, new_BCHW, -beta))
    return (optimality_B * positive_B + (1 - optimality_B) * negative_B) / beta


def _normalized_errors(clean_BCHW: torch.Tensor, predicted_BCHW: torch.Tensor) -> torch.Tensor:
    """Return `mean((x - x_0)^2) / mean(|x - x_0|)` of each image, (B,); the divisor has no gradient."""
    errors_BCHW = predicted_BCHW.float() - clean_BCHW.float()
    scales_B = errors_BCHW.detach().abs().flatten(1).mean(1).clamp(min=_SMALLEST_ERROR)
    return errors_BCHW.square().flatten(1).mean(1) / scales_B


def matching_log_ratios(new_BCHW: torch.Tensor, old_BCHW: torch.Tensor, target_BCHW: torch.Tensor) -> torch.Tensor:
    """Return `log rho` of each image, (B,), from both outputs and the training target: the old error minus the new one.

    AWM (Xue et al. 2025, arXiv 2509.25050) has the negative denoising loss of an image, its mean squared error, in
    place of the log-probability of the steps that sampled it.
    """
    return matching_errors(old_BCHW.detach(), target_BCHW) - matching_errors(new_BCHW, target_BCHW)


def prediction_gaps(new_BCHW: torch.Tensor, other_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the mean squared difference of a model's outputs from another's, (B,), which has no gradient."""
    return matching_errors(new_BCHW, other_BCHW.detach())


def matching_errors(output_BCHW: torch.Tensor, target_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the denoising loss of each image, (B,): the mean squared error of an output."""
    return sample_losses(squared_errors(output_BCHW, target_BCHW))


def group_shares(
    errors_B: torch.Tensor,
    reference_errors_B: torch.Tensor,
    advantages_B: torch.Tensor,
    *,
    beta: float,
    group_size: int,
) -> torch.Tensor:
    """Return the share of each image in the margin of its group, (B,), without a graph.

    The margin of DGPO (Luo et al. 2025, arXiv 2510.08425) is the difference of the implicit rewards of a prompt's
    better and worse images, each weighted by its advantage: over the G images of the group

        m = -(beta / G) sum A_i (d_i - d_ref,i)

    with the denoising losses d of the model and the reference, of the same timestep and noise for the whole group.
    The advantages of a group add up to 0, so that what the reward of the prompt as a whole is cancels out.
    """
    changes_B = (errors_B - reference_errors_B).detach()
    return -(beta / group_size) * advantages_B * changes_B


def group_preference_losses(
    errors_B: torch.Tensor,
    old_errors_B: torch.Tensor,
    advantages_B: torch.Tensor,
    margins_B: torch.Tensor,
    *,
    clip_range: float,
) -> torch.Tensor:
    """Return the loss of DGPO of each image, (B,): `sigmoid(-m) A d` with the margin m of its group, without its graph.

    Its mean over a group has the gradient of `-log sigmoid(m) / beta`. As in the authors' code an image has no gradient
    if its denoising loss has moved from the old model's so that the ratio `rho = exp(d_old - d)` is outside of the clip
    range in the direction of its advantage.
    """
    ratios_B = (old_errors_B - errors_B).detach().exp()
    is_good_B = advantages_B > 0
    is_past_B = torch.where(is_good_B, ratios_B > 1 + clip_range, ratios_B < 1 - clip_range)
    errors_B = torch.where(is_past_B, errors_B.detach(), errors_B)
    return torch.sigmoid(-margins_B).detach() * advantages_B * errors_B
