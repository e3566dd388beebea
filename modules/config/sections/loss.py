"""The loss: which distances count, and how they are weighed."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.diffusion.weightings.registry import WEIGHTINGS, weighting_labels
from modules.settings.field import Section, Setting, When, one_of

Scaler = Literal["none", "batch", "global_batch", "accumulation", "both", "global_both"]
SCALER_LABELS = {
    "none": "Off",
    "batch": "Batch size",
    "global_batch": "Batch size of all GPUs",
    "accumulation": "Accumulation",
    "both": "Batch size and accumulation",
    "global_both": "Batch size of all GPUs and accumulation",
}


class Loss(Section):
    """How the distance between prediction and target is weighed."""

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
            "The limit of min-SNR; 5 is usual. Of P2 the exponent; 1 is usual.",
            group="Loss",
            applies_when=When("weighting", tuple(name for name, spec in WEIGHTINGS.items() if spec.uses_gamma)),
        ),
    ] = 5.0
    mse_strength: Annotated[
        float,
        Ge(0),
        Le(1000),
        Setting(
            "Squared distance",
            "How much the mean squared distance counts, the usual one.",
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
            "Absolute distance",
            "How much the mean absolute distance counts, beside the others.",
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
            "Log-cosh distance",
            "How much a distance counts that is squared where small and absolute where large.",
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
            "Huber distance",
            "How much the distance of Huber counts, squared below its limit and absolute above.",
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
            "Limit of Huber",
            "Up to here the distance of Huber is squared.",
            group="Loss",
            level="advanced",
        ),
    ] = 1.0
    scaler: Annotated[
        Scaler,
        Setting(
            "Loss times",
            "Multiplies the loss by the number of images that make a step.",
            group="Loss",
            level="advanced",
            choice_labels=SCALER_LABELS,
            not_yet_choices=frozenset(SCALER_LABELS) - {"none"},
        ),
    ] = "none"
