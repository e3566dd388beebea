"""The values that a step reports in addition to its loss, mostly by its method: one record each. The window draws its
curves.

A method reports a value by its name, or by a name below it, such as "reward/pickscore".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Better = Literal["high", "low", "steady"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A value that is reported at each step: its name, label and meaning, and in which direction a run goes well.

    `limits` are the range of possible values where there is one. `is_of_method`: a method reports it, and it shows how
    the run goes better than the loss does. `is_distance`: it shows how far the model has moved from the one before
    training, or how fast it moves.
    """

    name: str
    label: str
    help: str
    better: Better
    limits: tuple[float, float] | None = None
    is_of_method: bool = True
    is_distance: bool = False


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "unscaled_loss",
            "Loss without learned weights",
            "The loss before the learned weights of the noise levels are applied: they keep the weighted loss close to "
            "1.",
            "low",
            is_of_method=False,
        ),
        Metric(
            "effective_rate",
            "Effective learning rate",
            "The learning rate that the optimizer has found itself, scaled by the learning rate and its schedule.",
            "steady",
        ),
        Metric(
            "psnr",
            "PSNR",
            "How close reconstructed images are to their originals, in dB: the peak signal-to-noise ratio. Half a "
            "decibel is visible.",
            "high",
        ),
        Metric(
            "lpips",
            "LPIPS",
            "How different reconstructed images look from their originals: the distance of the features that a VGG16 "
            "sees in them. 0 if they are the same.",
            "low",
        ),
        Metric(
            "ssim",
            "SSIM",
            "How similar the structures of reconstructed images and their originals are. 1 if they are the same.",
            "high",
            (-1.0, 1.0),
        ),
        Metric("reward", "Reward", "The mean reward of the images sampled for training.", "high"),
        Metric("reward_std", "Reward spread", "The standard deviation of the rewards of a rollout.", "steady"),
        Metric(
            "equal_rewards",
            "Equal rewards",
            "The share of prompts whose images all have the same reward, or of which a person preferred none: nothing "
            "is learned from them.",
            "low",
            (0.0, 1.0),
        ),
        Metric(
            "diversity",
            "Diversity",
            "How different the images of a prompt are: the mean distance of their latents, relative to their norm. If "
            "it falls towards 0, the model samples the same image again and again.",
            "steady",
        ),
        Metric(
            "saturation",
            "Saturation",
            "How colourful the measured images are, 0 to 1. If it rises by half, the model may exploit the reward.",
            "steady",
            (0.0, 1.0),
            is_of_method=False,
        ),
        Metric(
            "kl",
            "KL to the reference",
            "How far the model has moved away from the reference model, per denoising step.",
            "low",
            is_distance=True,
        ),
        Metric(
            "approx_kl",
            "KL of the update",
            "How far the model has moved since its images were sampled: half the mean squared log-ratio.",
            "low",
            is_distance=True,
        ),
        Metric(
            "clip_fraction",
            "Clip fraction",
            "The share of denoising steps whose probability ratio is outside the clip range, and is not trained.",
            "low",
            (0.0, 1.0),
        ),
        Metric(
            "ratio", "Probability ratio", "The mean probability ratio of the model and the one that sampled.", "steady"
        ),
        Metric(
            "implicit_accuracy",
            "Implicit accuracy",
            "The share of pairs in which the model prefers the chosen image more than the reference model does. 0.5 at "
            "the start.",
            "high",
            (0.0, 1.0),
        ),
        Metric(
            "margin",
            "Margin",
            "How much more the model prefers the chosen images than the reference model does.",
            "high",
        ),
        Metric(
            "negative_margins",
            "Negative margins",
            "The share of pairs whose rejected image the model prefers more than the reference model does. It should "
            "fall; if it rises while the margin rises, a few pairs are learned at the cost of the others.",
            "low",
            (0.0, 1.0),
        ),
        Metric(
            "beta",
            "Beta",
            "The beta that the target margin leads to. It falls as the model moves away from the reference.",
            "steady",
        ),
        Metric(
            "chosen_error",
            "Error of chosen",
            "The change of the error on chosen images against the reference.",
            "low",
            is_distance=True,
        ),
        Metric(
            "rejected_error",
            "Error of rejected",
            "The change of the error on rejected images against the reference. If both errors rise, images degrade.",
            "steady",
        ),
        Metric(
            "gradient_norm",
            "Gradient norm",
            "The norm of the gradient of each trained part, before it is clipped. A jump is a step that goes too far.",
            "steady",
            is_of_method=False,
        ),
        Metric(
            "scaled_layers",
            "Layers at the max norm",
            "How many layers of the LoRA had a norm above the limit, and were scaled down to it.",
            "steady",
            is_of_method=False,
        ),
        Metric(
            "weight_norm",
            "Mean norm of the layers",
            "The mean norm of the LoRA's layers.",
            "steady",
            is_of_method=False,
        ),
    )
}


def metric_of(name: str) -> Metric | None:
    """Return the record of a reported name such as "reward/pickscore"; None if it has none."""
    return METRICS.get(name.partition("/")[0])
