"""The loss: which terms count, and how they are weighted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from modules.diffusion.weightings import WEIGHTINGS, weightings_for
from modules.families.registry import predictions_in_use
from modules.objectives.losses.registry import LOSSES
from modules.optim.scaling import SCALER_LABELS, Scaler
from modules.settings.conditions import USES_DENOISER
from modules.settings.field import Section, Setting, When, one_of

_WITH_DELTA = When("huber_strength", is_set=True, otherwise=When("smooth_l1_strength", is_set=True))


def weighting_labels() -> Mapping[str, str]:
    """Return the names and labels of the weightings that some family's models can be trained with."""
    return {name: spec.label for name, spec in weightings_for(predictions_in_use()).items()}


def _strength(name: str) -> Setting:
    spec = LOSSES[name]
    return Setting(f"{spec.label} strength", spec.help, group="Loss", level="advanced")


class Loss(Section):
    """How the error between prediction and target is weighted."""

    applies_when: ClassVar[When | None] = USES_DENOISER

    weighting: Annotated[
        str,
        *one_of(weighting_labels),
        Setting(
            "Loss weighting",
            " ".join(spec.help for spec in weightings_for(predictions_in_use()).values() if spec.help),
            group="Loss",
        ),
    ] = "none"
    gamma: Annotated[
        float,
        Gt(0),
        Le(100),
        Setting(
            "Gamma",
            "Min-SNR: the clamp, usually 5; soft-min-SNR: 4 or 5. P2: the exponent, usually 1.",
            group="Loss",
            applies_when=When("weighting", tuple(name for name, spec in WEIGHTINGS.items() if spec.uses_gamma)),
        ),
    ] = 5.0
    learned_weighting: Annotated[
        bool,
        Setting(
            "Learned weighting",
            "Learns a weight for each noise level during the run, so that all of them contribute equally (EDM2, Karras "
            "et al. 2024). The reported loss is then close to 1; the chart also offers the loss without these weights.",
            group="Loss",
            level="advanced",
        ),
    ] = False
    learned_weighting_rate: Annotated[
        float,
        Gt(0),
        Le(1),
        Setting(
            "Learned weighting rate",
            "The learning rate of the learned weights.",
            group="Loss",
            level="advanced",
            applies_when=When("learned_weighting", (True,)),
        ),
    ] = 0.005
    mse_strength: Annotated[float, Ge(0), Le(1000), _strength("mse")] = 1.0
    mae_strength: Annotated[float, Ge(0), Le(1000), _strength("mae")] = 0.0
    log_cosh_strength: Annotated[float, Ge(0), Le(1000), _strength("log_cosh")] = 0.0
    huber_strength: Annotated[float, Ge(0), Le(1000), _strength("huber")] = 0.0
    smooth_l1_strength: Annotated[float, Ge(0), Le(1000), _strength("smooth_l1")] = 0.0
    huber_delta: Annotated[
        float,
        Gt(0),
        Le(1000),
        Setting(
            "Huber delta",
            "Where the Huber and smooth L1 losses turn from quadratic to linear.",
            group="Loss",
            level="advanced",
            applies_when=_WITH_DELTA,
        ),
    ] = 1.0
    huber_schedule: Annotated[
        Literal["constant", "snr", "exponential"],
        Setting(
            "Huber schedule",
            "How delta changes with the timestep. SNR and exponential: 1 for nearly clean images, Huber delta for the "
            "noisiest ones, so that outliers count less where they do most damage.",
            group="Loss",
            level="advanced",
            applies_when=_WITH_DELTA,
            choice_labels={"constant": "Constant", "snr": "SNR", "exponential": "Exponential"},
        ),
    ] = "constant"
    huber_form: Annotated[
        Literal["huber", "pseudo_huber"],
        Setting(
            "Huber form",
            "Pseudo-Huber is smooth everywhere; it is what kohya's trainer uses for Huber and smooth L1.",
            group="Loss",
            level="advanced",
            applies_when=_WITH_DELTA,
            choice_labels={"huber": "Huber", "pseudo_huber": "Pseudo-Huber"},
        ),
    ] = "huber"
    scaler: Annotated[
        Scaler,
        Setting(
            "Loss scaler",
            "Multiplies the loss by the batch size, the accumulation steps, or both.",
            group="Loss",
            level="advanced",
            choice_labels=SCALER_LABELS,
        ),
    ] = "none"
