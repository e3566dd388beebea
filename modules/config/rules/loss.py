"""The settings of the loss: one that is always 0, and a weighting that leaves little to train on."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import method_of, settings_of_method
from modules.config.schema import Config
from modules.objectives.losses.registry import LOSSES
from modules.system.problem import Problem

_SECTION = "training.loss."


def loss_strengths(config: Config) -> Iterator[Problem]:
    """Yield an error if all strengths are 0: nothing would be trained."""
    strengths = [getattr(config.training.loss, f"{name}_strength") for name in LOSSES]
    if _uses_loss(config) and not any(strengths):
        labels = [spec.label for spec in LOSSES.values()]
        yield Problem(
            f"{_SECTION}mse_strength",
            f"All losses have the strength 0 ({', '.join(labels)}): nothing is trained.",
            advice="Set the MSE strength to 1, or give another loss a strength.",
        )


def p2_gamma(config: Config) -> Iterator[Problem]:
    """Yield a warning for P2 weighting with the gamma of min-SNR: nearly clean timesteps would not count at all."""
    loss = config.training.loss
    if loss.weighting == "p2" and loss.gamma > 2 and _uses_loss(config):
        yield Problem(
            f"{_SECTION}gamma",
            f"P2 weighting with a gamma of {loss.gamma:g} trains on little but the noisiest timesteps.",
            "warning",
            "Set gamma to 1, or to 0.5 for a weaker effect.",
        )


def _uses_loss(config: Config) -> bool:
    return method_of(config).has_denoising_loss(settings_of_method(config))
