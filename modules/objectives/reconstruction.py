"""The loss of a VAE on its reconstructions, and the similarity of images: PSNR and SSIM.

Images are float32 in [-1, 1], (B, 3, P, P).
"""

from __future__ import annotations

import torch
from torch.nn import functional

_SSIM_WINDOW = 11  # pixels; the window, its sigma and the constants are from Wang et al. 2004, section III
_SSIM_SIGMA = 1.5
_SSIM_CONSTANTS = (0.01**2, 0.03**2)  # for values in [0, 1]
_MIN_ERROR = 1e-10  # of images that are the same: 100 dB


def pixel_errors(
    decoded_B3PP: torch.Tensor, images_B3PP: torch.Tensor, *, mse_strength: float, mae_strength: float
) -> torch.Tensor:
    """Return the errors of all pixels, (B, 3, P, P): squared and absolute errors, times their strengths."""
    differences_B3PP = decoded_B3PP.float() - images_B3PP.float()
    errors_B3PP = mse_strength * differences_B3PP.square()
    return errors_B3PP + mae_strength * differences_B3PP.abs() if mae_strength else errors_B3PP


def kl_divergences(means_BCHW: torch.Tensor, log_variances_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the KL divergence of each image's latents from N(0, 1), (B,), as the mean over their elements.

    Kingma and Welling 2014, appendix B, which has the sum.
    """
    terms_BCHW = means_BCHW.square() + log_variances_BCHW.exp() - 1.0 - log_variances_BCHW
    return 0.5 * terms_BCHW.flatten(1).mean(dim=1)


def peak_signal_to_noise(decoded_B3PP: torch.Tensor, images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return the PSNR of each image in dB, (B,), at most 100; values outside of [-1, 1] are clamped."""
    differences_B3PP = (decoded_B3PP.float().clamp(-1, 1) - images_B3PP.float()) / 2
    errors_B = differences_B3PP.square().flatten(1).mean(dim=1)
    return -10.0 * torch.log10(errors_B.clamp(min=_MIN_ERROR))


def structural_similarity(decoded_B3PP: torch.Tensor, images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return the SSIM of each image, (B,), at most 1: the mean over its channels and pixels (Wang et al. 2004).

    Values outside of [-1, 1] are clamped. Images need at least 11 pixels on each side.
    """
    one, other = (t.float().clamp(-1, 1) / 2 + 0.5 for t in (decoded_B3PP, images_B3PP))
    kernel = _window(one)
    mean_one, mean_other = _blur(one, kernel), _blur(other, kernel)
    variance_one = _blur(one * one, kernel) - mean_one.square()
    variance_other = _blur(other * other, kernel) - mean_other.square()
    covariance = _blur(one * other, kernel) - mean_one * mean_other
    first, second = _SSIM_CONSTANTS
    luminance = (2 * mean_one * mean_other + first) / (mean_one.square() + mean_other.square() + first)
    structure = (2 * covariance + second) / (variance_one + variance_other + second)
    return (luminance * structure).flatten(1).mean(dim=1)


def _window(images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return the Gaussian window of SSIM for three channels, (3, 1, 11, 11)."""
    positions = torch.arange(_SSIM_WINDOW, dtype=images_B3PP.dtype, device=images_B3PP.device) - _SSIM_WINDOW // 2
    weights = torch.exp(-positions.square() / (2 * _SSIM_SIGMA**2))
    weights = weights / weights.sum()
    return torch.outer(weights, weights).expand(3, 1, _SSIM_WINDOW, _SSIM_WINDOW)


def _blur(images_B3PP: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(images_B3PP, kernel, groups=3)
