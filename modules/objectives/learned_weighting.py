"""Loss weights learned for each noise level (Karras et al. 2024, EDM2): every noise level contributes equally.

"Analyzing and Improving the Training Dynamics of Diffusion Models" (arXiv 2312.02696), eq. 21: the loss L of a sample
becomes `L / exp(u(sigma)) + u(sigma)`. Its minimum over u is `exp(u) = E[L | sigma]`, so that the weighted loss is
about 1 at every noise level; u is the uncertainty of the task in multi-task learning (Kendall et al. 2018). u is one
linear layer on Fourier features of `ln(sigma) / 4` (section 2.2 and appendix B).

The two gradients are separate: the model's sees exp(u) as a constant, and u's sees L as a constant. So u is
trained here, apart from the model's backward pass, whether that accumulates, is fused or is scaled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

_NUM_FEATURES = 128
_MIN_SNR, _HIGHEST_SNR = 1e-8, 1e8  # zero terminal SNR has an infinite sigma
_PREFIX = "learned_weighting."
_BETAS, _EPS = (0.9, 0.99), 1e-8


class LearnedWeighting:
    """The function u with its own Adam. At first u is 0, so that all weights are 1.

    `add` collects the losses of a step's micro-batches; u is updated with all of them before the first loss of the next
    step, so a step that is discarded half way leaves no trace.
    """

    def __init__(self, learning_rate: float) -> None:
        generator = torch.Generator().manual_seed(0)  # the features are a part of the definition, not of the run
        self._frequencies = 2 * math.pi * torch.randn(_NUM_FEATURES, generator=generator)
        self._phases = 2 * math.pi * torch.rand(_NUM_FEATURES, generator=generator)
        self._learning_rate = learning_rate
        self._weights = torch.zeros(_NUM_FEATURES)
        self._means, self._squares = torch.zeros(_NUM_FEATURES), torch.zeros(_NUM_FEATURES)
        self._num_updates = 0
        self._step = -1
        self._pending: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def log_scales(self, snr_B: torch.Tensor) -> torch.Tensor:
        """Return u at these signal-to-noise ratios, float32 of shape (B,), without gradient."""
        self._move(snr_B.device)
        return (self._features(snr_B) * self._weights).sum(dim=1)

    def begin(self, step: int) -> None:
        """Begin a micro-batch of a step: the losses of an earlier step update u, losses of any other step are
        forgotten.
        """
        if step == self._step:
            return
        if step > self._step:
            self._update()
        self._pending.clear()
        self._step = step

    def add(self, snr_B: torch.Tensor, losses_B: torch.Tensor, weights_B: torch.Tensor | None = None) -> None:
        """Add the losses of a micro-batch, each (B,), before they are divided by exp(u); None weights are all 1."""
        losses_B = losses_B.detach().float()
        self._pending.append((snr_B, losses_B, torch.ones_like(losses_B) if weights_B is None else weights_B.float()))

    def copy(self) -> LearnedWeighting:
        """Return a copy that can be trained and discarded."""
        copied = LearnedWeighting(self._learning_rate)
        copied.load_state_dict(self.state_dict(self._step))
        return copied

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the state after `step` finished steps, as tensors on the CPU and plain values.

        The last finished step is applied first: nothing else can change it any more.
        """
        if self._pending and self._step < step:
            self._update()
            self._pending.clear()
        tensors = {"weights": self._weights, "means": self._means, "squares": self._squares}
        state: dict[str, Any] = {f"{_PREFIX}{name}": value.cpu().clone() for name, value in tensors.items()}
        return {**state, f"{_PREFIX}num_updates": self._num_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; one without learned weights, of a run that did not have any, changes nothing."""
        if f"{_PREFIX}weights" not in state:
            return
        device = self._weights.device
        self._weights, self._means, self._squares = (
            state[f"{_PREFIX}{name}"].clone().to(device) for name in ("weights", "means", "squares")
        )
        self._num_updates = int(state[f"{_PREFIX}num_updates"])

    def _features(self, snr_B: torch.Tensor) -> torch.Tensor:
        """Return `sqrt(2) cos(f ln(sigma) / 4 + phase)` divided by the root of their number, of shape (B, F)."""
        noise_B = -snr_B.float().clamp(_MIN_SNR, _HIGHEST_SNR).log() / 8.0  # ln(sigma) / 4, sigma = snr^-1/2
        angles_BF = noise_B[:, None] * self._frequencies + self._phases
        return angles_BF.cos() * math.sqrt(2.0 / _NUM_FEATURES)

    def _update(self) -> None:
        """Make one step of Adam with the gradient of the mean of `weight * (L / exp(u) + u)` over the samples.

        Losses that are not finite, or 0 (nothing was trained), do not count. Nothing waits for the device.
        """
        if not self._pending:
            return
        snr_B, losses_B, weights_B = (torch.cat(values) for values in zip(*self._pending, strict=True))
        counts_B = losses_B.isfinite() & (losses_B > 0)
        features_BF = self._features(snr_B)
        ratios_B = torch.where(counts_B, losses_B, 0.0) * (-(features_BF * self._weights).sum(dim=1)).exp()
        slopes_B = torch.where(counts_B, weights_B * (1.0 - ratios_B), 0.0)
        gradient_F = (slopes_B[:, None] * features_BF).sum(dim=0) / counts_B.sum().clamp(min=1)
        self._num_updates += 1
        beta1, beta2 = _BETAS
        self._means = self._means.lerp(gradient_F, 1 - beta1)
        self._squares = self._squares * beta2 + gradient_F.square() * (1 - beta2)
        means_F = self._means / (1 - beta1**self._num_updates)
        squares_F = self._squares / (1 - beta2**self._num_updates)
        self._weights = self._weights - self._learning_rate * means_F / (squares_F.sqrt() + _EPS)

    def _move(self, device: torch.device) -> None:
        if self._weights.device != device:
            for name in ("_frequencies", "_phases", "_weights", "_means", "_squares"):
                setattr(self, name, getattr(self, name).to(device))
