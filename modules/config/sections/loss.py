"""The loss: which terms count, and how they are weighted."""

from typing import Annotated, ClassVar

from annotated_types import Interval

from modules.objectives.losses import MixSettings
from modules.optim.scaling import SCALER_LABELS, Scaler
from modules.settings.conditions import USES_DENOISER
from modules.settings.field import Section, Setting, When, advanced_setting, one_of
from modules.settings.shared_types import PositiveFraction
from modules.system.factories import late

_WEIGHTINGS = "modules.diffusion.weightings"


class Loss(Section):
    """How the error between prediction and target is weighted."""

    group: ClassVar[str] = "Loss"
    applies_when: ClassVar[When | None] = USES_DENOISER

    weighting: Annotated[
        str,
        *one_of(late(f"{_WEIGHTINGS}:weighting_labels"), late(f"{_WEIGHTINGS}:weighting_help")),
        Setting("Loss weighting", "", help_from=late(f"{_WEIGHTINGS}:help_on_all")),
    ] = "none"
    gamma: Annotated[
        float,
        *Interval(gt=0, le=100),
        Setting(
            "Gamma",
            "",
            help_from=late(f"{_WEIGHTINGS}:help_on_gamma"),
            applies_when=When("weighting", late(f"{_WEIGHTINGS}:names_with_gamma")),
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
