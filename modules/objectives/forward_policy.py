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
    return _mean_errors(old_BCHW.detach(), target_BCHW) - _mean_errors(new_BCHW, target_BCHW)


def prediction_gaps(new_BCHW: torch.Tensor, other_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the mean squared difference of a model's outputs from another's, (B,), which has no gradient."""
    return _mean_errors(new_BCHW, other_BCHW.detach())


def _mean_errors(output_BCHW: torch.Tensor, target_BCHW: torch.Tensor) -> torch.Tensor:
    return sample_losses(squared_errors(output_BCHW, target_BCHW))
