"""The loss: which terms count, and how they are weighted."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.diffusion.weightings.registry import WEIGHTINGS, weighting_labels
from modules.settings.field import Section, Setting, When, one_of

Scaler = Literal["none", "batch", "global_batch", "accumulation", "both", "global_both"]
SCALER_LABELS = {
    "none": "Off",
    "batch": "Batch size",
    "global_batch": "Global batch size",
    "accumulation": "Accumulation",
    "both": "Batch size and accumulation",
    "global_both": "Global batch size and accumulation",
}


class Loss(Section):
    """How the error between prediction and target is weighted."""

    weighting: Annotated[
        str,
        *one_of(weighting_labels),
        Setting(
            "Loss weighting",
            " ".join(spec.help for spec in WEIGHTINGS.values() if spec.help),
            group="Loss",
            not_yet_choices=frozenset(name for name, spec in WEIGHTINGS.items() if spec.weights is None),
        ),
    ] = "none"
    gamma: Annotated[
        float,
        Gt(0),
        Le(100),
        Setting(
            "Gamma",
            "Min-SNR: the clamp, usually 5. P2: the exponent, usually 1.",
            group="Loss",
            applies_when=When("weighting", tuple(name for name, spec in WEIGHTINGS.items() if spec.uses_gamma)),
        ),
    ] = 5.0
    mse_strength: Annotated[
        float,
        Ge(0),
        Le(1000),
        Setting(
            "MSE strength",
            "The weight of the mean squared error, the usual loss.",
            group="Loss",
            level="advanced",
            not_yet="refused",
        ),
    ] = 1.0
    mae_strength: Annotated[
        float,
        Ge(0),
        Le(1000),
        Setting(
            "MAE strength",
            "The weight of the mean absolute error.",
            group="Loss",
            level="advanced",
            not_yet="refused",
        ),
    ] = 0.0
    log_cosh_strength: Annotated[
        float,
        Ge(0),
        Le(1000),
        Setting(
            "Log-cosh strength",
            "The weight of the log-cosh loss: quadratic for small errors, linear for large ones.",
            group="Loss",
            level="advanced",
            not_yet="refused",
        ),
    ] = 0.0
    huber_strength: Annotated[
        float,
        Ge(0),
        Le(1000),
        Setting(
            "Huber strength",
            "The weight of the Huber loss: quadratic below delta, linear above.",
            group="Loss",
            level="advanced",
            not_yet="refused",
        ),
    ] = 0.0
    huber_delta: Annotated[
        float,
        Gt(0),
        Le(1000),
        Setting(
            "Huber delta",
            "Where the Huber loss turns from quadratic to linear.",
            group="Loss",
            level="advanced",
        ),
    ] = 1.0
    scaler: Annotated[
        Scaler,
        Setting(
            "Loss scaler",
            "Multiplies the loss by the batch size, the accumulation steps, or both.",
            group="Loss",
            level="advanced",
            choice_labels=SCALER_LABELS,
            not_yet_choices=frozenset(SCALER_LABELS) - {"none"},
        ),
    ] = "none"
