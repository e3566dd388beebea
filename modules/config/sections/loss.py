"""The loss: which terms count, and how they are weighted."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from annotated_types import Interval

from modules.diffusion.weightings import WEIGHTINGS
from modules.objectives.losses import MixSettings
from modules.optim.scaling import SCALER_LABELS, Scaler
from modules.settings.conditions import USES_DENOISER
from modules.settings.field import Section, Setting, When, advanced_setting, one_of
from modules.settings.shared_types import PositiveFraction


def weighting_labels() -> Mapping[str, str]:
    """Return the labels of the weightings by name."""
    return {name: spec.label for name, spec in WEIGHTINGS.items()}


def weighting_help() -> Mapping[str, str]:
    """Return a sentence for each weighting, by its name."""
    return {name: spec.help for name, spec in WEIGHTINGS.items()}


class Loss(Section):
    """How the error between prediction and target is weighted."""

    group: ClassVar[str] = "Loss"
    applies_when: ClassVar[When | None] = USES_DENOISER

    weighting: Annotated[
        str,
        *one_of(weighting_labels, weighting_help),
        Setting("Loss weighting", " ".join(spec.help for spec in WEIGHTINGS.values() if spec.help)),
    ] = "none"
    gamma: Annotated[
        float,
        *Interval(gt=0, le=100),
        Setting(
            "Gamma",
            " ".join(f"{spec.label}: {spec.gamma_help}." for spec in WEIGHTINGS.values() if spec.gamma_help),
            applies_when=When("weighting", tuple(name for name, spec in WEIGHTINGS.items() if spec.gamma_help)),
        ),
    ] = 5.0
    learned_weighting: Annotated[
        bool,
        advanced_setting(
            "Learned weighting",
            "Learns a weight for each noise level during the run, so that all of them contribute equally (EDM2, Karras "
            "et al. 2024). The reported loss is then close to 1; the chart also offers the loss without these weights.",
        ),
    ] = False
    learned_weighting_rate: Annotated[
        PositiveFraction,
        advanced_setting(
            "Learned weighting rate",
            "The learning rate of the learned weights.",
            applies_when=When("learned_weighting", (True,)),
        ),
    ] = 0.005
    mix: MixSettings = MixSettings.with_defaults()
    scaler: Annotated[
        Scaler,
        advanced_setting(
            "Loss scaler",
            "Multiplies the loss by the batch size, the accumulation steps, or both.",
            choice_labels=SCALER_LABELS,
        ),
    ] = "none"
