"""Losses for pairs of a chosen and a rejected image: Diffusion-DPO, IPO, MaPO.

A pair shares its caption, its timestep and its noise. Everything depends on the errors of the predictions of both
images, of the model that is trained and of the reference model. An error is the mean over all dimensions of the
squared error of the noise, `d = mean |eps - eps_theta(x_t, t, c)|^2`, also for a model that predicts v, so that beta
has the same meaning for all models. All results are float32 of shape (B,), one value per pair, unless stated otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.functional import logsigmoid

from modules.diffusion.process import NoiseProcess
from modules.objectives.denoise import sample_losses, squared_errors, weighted_by_area

PreferenceLoss = Literal["sigmoid", "ipo"]
_SERIES_BELOW = 1e-2  # of x, where `x / (e^x - 1)` is computed by its series


@dataclass(frozen=True, eq=False)
class PairErrors:
    """The errors of chosen and rejected images, each of shape (B,)."""

    chosen_B: torch.Tensor
    rejected_B: torch.Tensor

    def minus(self, reference: PairErrors) -> PairErrors:
        """Return how much larger these errors are than the reference model's, which get no gradient."""
        return PairErrors(self.chosen_B - reference.chosen_B.detach(), self.rejected_B - reference.rejected_B.detach())


def noise_errors(
    process: NoiseProcess,
    output_BCHW: torch.Tensor,
    target_BCHW: torch.Tensor,
    timesteps_B: torch.Tensor,
    area_weights_B1HW: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mean squared errors of the noise that model outputs imply; `target_BCHW` is the training target.

    For a model that predicts a velocity they are its errors times a factor of the process. Without the factor, pairs
    with much noise would count hundreds of times as much. With area weights, each place counts by its own.
    """
    errors_BCHW = weighted_by_area(squared_errors(output_BCHW, target_BCHW), area_weights_B1HW)
    return process.noise_errors(sample_losses(errors_BCHW), timesteps_B)


def pair_errors(
    process: NoiseProcess,
    output_BCHW: torch.Tensor,
    target_BCHW: torch.Tensor,
    timesteps_B: torch.Tensor,
    area_weights_B1HW: torch.Tensor | None = None,
) -> PairErrors:
    """Return the errors of a batch whose first half are the chosen images, and its second half their rejected ones.

    The area weights of a pair, one for each half of the batch, count for both of its images. Raises ValueError for an
    odd number of images.
    """
    if len(output_BCHW) % 2:
        raise ValueError(f"A batch of pairs has an even number of images, not {len(output_BCHW)}.")
    weights_B1HW = None if area_weights_B1HW is None else torch.cat([area_weights_B1HW, area_weights_B1HW])
    return PairErrors(*noise_errors(process, output_BCHW, target_BCHW, timesteps_B, weights_B1HW).chunk(2))


def implicit_margins(errors: PairErrors, reference: PairErrors, *, beta: float) -> torch.Tensor:
    """Return by how much the model prefers the chosen images, compared to the reference model.

    `-beta / 2 * ((d(w) - d_ref(w)) - (d(l) - d_ref(l)))`, the argument of the sigmoid in Diffusion-DPO (Wallace et al.
    2023, arXiv 2311.12908, eq. 14, with beta in place of `beta T omega`): the difference of the implicit rewards of the
    chosen image w and the rejected image l. It is 0 if both models are the same.
    """
    changes = errors.minus(reference)
    return -0.5 * beta * (changes.chosen_B - changes.rejected_B)


def mean_gap(margins_B: torch.Tensor, *, beta: float) -> torch.Tensor:
    """Return the mean size of the differences of errors that margins at a `beta` come from, shape (), without a graph.

    It is the mean of `|m| / (beta / 2)`, see `implicit_margins`.
    """
    return margins_B.detach().float().abs().mean() * (2.0 / beta)


def beta_for_margin(gap: float, *, target: float, highest: float) -> float:
    """Return the beta with which a difference of errors `gap` is a margin of `target`, at most `highest`.

    `beta = 2 target / gap`, from the margin of Diffusion-DPO (`implicit_margins`). A gap of 0, as before the first
    update, has no such beta: then it is `highest`.
    """
    return highest if gap * highest <= 2.0 * target else 2.0 * target / gap


def preference_losses(margins_B: torch.Tensor, *, loss: PreferenceLoss, label_smoothing: float = 0.0) -> torch.Tensor:
    """Return the losses of margins.

    "sigmoid": `-log sigmoid(m)` (Rafailov et al. 2023, arXiv 2305.18290, eq. 7), which is ln 2 for a margin of 0.
    "ipo": `(m - 1/2)^2`, which keeps margins from growing without limit (Azar et al. 2023, arXiv 2310.12036, eq. 17,
    times beta^2, so that its gradient is as large as the sigmoid's).
    `label_smoothing` is the assumed share of pairs that are labelled the wrong way round: the loss is the one of both
    orders, weighted by their shares (conservative DPO, Mitchell 2023).
    """
    losses_B = _losses_of(margins_B.float(), loss)
    if not label_smoothing:
        return losses_B
    return (1.0 - label_smoothing) * losses_B + label_smoothing * _losses_of(-margins_B.float(), loss)


def _losses_of(margins_B: torch.Tensor, loss: str) -> torch.Tensor:
    match loss:
        case "sigmoid":
            return -logsigmoid(margins_B)
        case "ipo":
            return (margins_B - 0.5).square()
        case _:
            raise ValueError(f"Unknown preference loss {loss!r}; choose sigmoid or ipo.")


def step_margins(
    chosen_log_ratios_B: torch.Tensor, rejected_log_ratios_B: torch.Tensor, *, beta: float, ratio_clip: float
) -> torch.Tensor:
    """Return by how much the model prefers the chosen next latents of a denoising step, compared to the reference.

    `beta (log clip(rho_w, 1 - c, 1 + c) - log clip(rho_l, 1 - c, 1 + c))` with the probability ratios `rho = p / p_ref`
    of both candidates for the next latents (Liang et al. 2024, arXiv 2406.04314, with the clipping of the authors'
    code). The log-ratios are ratios of means over the dimensions of the latents (`DdimStep.log_prob`), so they
    are small. A ratio outside of the range has no gradient.
    """
    low, high = math.log(1.0 - ratio_clip), math.log(1.0 + ratio_clip)
    chosen_B, rejected_B = (
        ratios_B.float().clamp(low, high) for ratios_B in (chosen_log_ratios_B, rejected_log_ratios_B)
    )
    return beta * (chosen_B - rejected_B)


def mapo_margins(errors: PairErrors, *, num_timesteps: int, scale: float) -> torch.Tensor:
    """Return by how much the model prefers the chosen images, without a reference model.

    `T * (g(d(w)) - g(d(l)))` with `g(d) = s d / (e^(s d) - 1)`, the log-odds ratio of MaPO (Hong et al. 2024, arXiv
    2406.06424, section 3, as the authors' code computes it). T is the number of timesteps, s the `scale` of the errors.
    """
    return num_timesteps * (_g(scale * errors.chosen_B.float()) - _g(scale * errors.rejected_B.float()))


def mapo_losses(errors: PairErrors, margins_B: torch.Tensor, *, beta: float) -> torch.Tensor:
    """Return the losses of MaPO: `d(w) - beta log sigmoid(margin)`, the denoising loss of w and the margin loss."""
    return errors.chosen_B - beta * logsigmoid(margins_B.float())


def _g(x_B: torch.Tensor) -> torch.Tensor:
    """Return `x / (e^x - 1)`, and its limit 1 at 0, with the gradient `-1/2` there."""
    is_small_B = x_B.abs() < _SERIES_BELOW
    safe_B = torch.where(is_small_B, torch.ones_like(x_B), x_B)
    series_B = 1.0 - x_B / 2 + x_B.square() / 12
    return torch.where(is_small_B, series_B, safe_B / torch.expm1(safe_B))


def implicit_accuracy(margins_B: torch.Tensor) -> torch.Tensor:
    """Return the share of pairs with a positive margin, shape (); a margin of 0 counts as half."""
    return (margins_B > 0).float().mean() + 0.5 * (margins_B == 0).float().mean()


def negative_share(margins_B: torch.Tensor) -> torch.Tensor:
    """Return the share of pairs whose rejected image the model prefers, shape (); a margin of 0 is not negative."""
    return (margins_B < 0).float().mean()


def preference_metrics(margins_B: torch.Tensor, changes: PairErrors) -> dict[str, torch.Tensor]:
    """Return the values that are reported of pairs, by the names of `METRICS`, each of shape () and without a graph.

    `changes` are the errors, compared to the reference model's if there is one.
    """
    margins_B = margins_B.detach()
    return {
        "implicit_accuracy": implicit_accuracy(margins_B),
        "margin": margins_B.mean(),
        "negative_margins": negative_share(margins_B),
        "chosen_error": changes.chosen_B.detach().mean(),
        "rejected_error": changes.rejected_B.detach().mean(),
    }
