"""The elementwise losses: a record each with its formula and settings, and the list of all.

A loss is bound to the timesteps of a batch first, so that its settings may follow them. The losses stay unreduced, one
value per element of the latents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

from annotated_types import Gt, Le
from pydantic import create_model

from modules.diffusion.process_spec import ProcessSpec
from modules.settings.conditions import USES_DENOISER
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import UpTo1000

if TYPE_CHECKING:
    import torch

    from modules.diffusion.process import NoiseProcess

OTHER_SCHEDULE = "Choose the schedule Constant or Exponential."
HuberForm = Literal["huber", "pseudo_huber"]
HuberSchedule = Literal["constant", "snr", "exponential"]

# `loss(differences_BCHW)` returns the loss of each difference between prediction and target, not negative, in the same
# shape.
ElementLoss = Callable[["torch.Tensor"], "torch.Tensor"]


def _strength(label: str, help_text: str) -> Setting:
    return advanced_setting(f"{label} strength", help_text, group="Loss")


class LossSettings(Section):
    """The strength of a loss in the mix, 0 if it is not used. A loss with further settings extends this."""

    applies_when: ClassVar[When | None] = USES_DENOISER

    strength: Annotated[UpTo1000, _strength("Loss", "The weight of the loss in the mix.")] = 0.0

    def refusal(self, process: ProcessSpec) -> tuple[str, str]:
        """Return the field whose value is not defined for models of a process, and the sentence; both may be empty."""
        return "", ""


S = TypeVar("S", bound=LossSettings)


@dataclass(frozen=True, slots=True, eq=False)
class LossSpec(Generic[S]):
    """An elementwise loss. Its settings are at `training.loss.mix.<name>`.

    `bind(settings, process, timesteps_B)` returns its formula for a batch at these timesteps. `onetrainer_key` is the
    key of its strength in OneTrainer's configs, `kohya_type` its `loss_type` in kohya's; both may be empty.
    """

    name: str
    label: str
    settings: type[S]
    bind: Callable[[S, NoiseProcess, torch.Tensor], ElementLoss]
    onetrainer_key: str = ""
    kohya_type: str = ""


# The squared error, the loss of Ho et al. 2020 (eq. 14).


def squared_error(differences: torch.Tensor) -> torch.Tensor:
    """Return `d^2`."""
    return differences.square()


class MseSettings(LossSettings):
    """The mean squared error."""

    strength: Annotated[UpTo1000, _strength("MSE", "The weight of the mean squared error, the usual loss.")] = 1.0


MSE = LossSpec("mse", "MSE", MseSettings, lambda *_: squared_error, "mse_strength", "l2")


def absolute_error(differences: torch.Tensor) -> torch.Tensor:
    """Return `|d|`."""
    return differences.abs()


class MaeSettings(LossSettings):
    """The mean absolute error."""

    strength: Annotated[UpTo1000, _strength("MAE", "The weight of the mean absolute error.")] = 0.0


MAE = LossSpec("mae", "MAE", MaeSettings, lambda *_: absolute_error, "mae_strength", "l1")


def log_cosh(differences: torch.Tensor) -> torch.Tensor:
    """Return `log(cosh(d)) = |d| + log(1 + exp(-2 |d|)) - log 2`, which does not overflow in this form."""
    sizes = differences.abs()
    return sizes + (-2.0 * sizes).exp().log1p() - math.log(2.0)


class LogCoshSettings(LossSettings):
    """The logarithm of the hyperbolic cosine of the error."""

    strength: Annotated[
        UpTo1000,
        _strength("Log-cosh", "The weight of the log-cosh loss: quadratic for small errors, linear for large ones."),
    ] = 0.0


LOG_COSH = LossSpec("log_cosh", "Log-cosh", LogCoshSettings, lambda *_: log_cosh, "log_cosh_strength")


# The Huber loss, quadratic below delta and linear above (Huber 1964), and its smooth pseudo-Huber form. `delta` has a
# shape that broadcasts to the differences.


def huber(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `d^2 / 2` where `|d|` is at most delta, and `delta (|d| - delta / 2)` elsewhere, as torch defines it."""
    sizes = differences.abs()
    limited = sizes.minimum(delta)
    return limited * (sizes - 0.5 * limited)


def pseudo_huber(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `2 delta (sqrt(d^2 + delta^2) - delta)`: `d^2` for small differences, of slope 2 delta for large ones.

    Khrapov et al. 2024 (arXiv 2403.16728), with sd-scripts' factor 2. The root is rationalized, because the difference
    of two nearly equal numbers would have few correct digits.
    """
    squares = differences.square()
    return 2.0 * delta * squares / ((squares + delta * delta).sqrt() + delta)


_FORMULAS = {"huber": huber, "pseudo_huber": pseudo_huber}


def huber_deltas(
    process: NoiseProcess, timesteps_B: torch.Tensor, *, delta: float, schedule: HuberSchedule
) -> torch.Tensor:
    """Return the delta of the Huber losses at these timesteps, float32 of shape (B,).

    Khrapov et al. 2024, "Improving Diffusion Models's Data-Corruption Resistance using Scheduled Pseudo-Huber Loss"
    (arXiv 2403.16728), section 4, as sd-scripts and diffusers have it: both schedules go from 1 at the cleanest
    timestep, where the loss is nearly quadratic, to `delta` at the noisiest. "exponential": `delta^(t / T)`. "snr":
    `(1 - delta) / (1 + sigma)^2 + delta` with `sigma = snr^-1/2`, which is infinite at zero terminal SNR: there, it is
    `delta`.
    """
    if schedule == "exponential":
        return (timesteps_B.float() * (math.log(delta) / process.num_timesteps)).exp()
    if schedule == "snr":
        return (1.0 - delta) / (1.0 + process.snr(timesteps_B).rsqrt()).square() + delta
    return timesteps_B.float().new_full(timesteps_B.shape, delta)


_IS_MIXED = When("strength", is_set=True)


def _delta(label: str) -> Setting:
    return advanced_setting(
        f"{label} delta", "Where the loss turns from quadratic to linear.", group="Loss", applies_when=_IS_MIXED
    )


def _schedule(label: str) -> Setting:
    return advanced_setting(
        f"{label} schedule",
        "How delta changes with the timestep. SNR and exponential: 1 for nearly clean images, delta for the noisiest "
        "ones, so that outliers count less where they do most damage.",
        group="Loss",
        applies_when=_IS_MIXED,
        choice_labels={"constant": "Constant", "snr": "SNR", "exponential": "Exponential"},
    )


def _form(label: str) -> Setting:
    return advanced_setting(
        f"{label} form",
        "Pseudo-Huber is smooth everywhere; it is what kohya's trainer uses for Huber and smooth L1.",
        group="Loss",
        applies_when=_IS_MIXED,
        choice_labels={"huber": "Huber", "pseudo_huber": "Pseudo-Huber"},
    )


class DeltaSettings(LossSettings):
    """The settings of a loss that turns from quadratic to linear at delta."""

    delta: Annotated[float, Gt(0), Le(1000), _delta("Huber")] = 1.0
    schedule: Annotated[HuberSchedule, _schedule("Huber")] = "constant"
    form: Annotated[HuberForm, _form("Huber")] = "huber"

    def refusal(self, process: ProcessSpec) -> tuple[str, str]:
        """Refuse the schedule by SNR for flow models: its paper and sd-scripts define it for DDPM alone."""
        if self.schedule != "snr" or process.flow is None:
            return "", ""
        return "schedule", process.undefined_message("The schedule SNR of the Huber losses")

    def deltas(self, process: NoiseProcess, timesteps_B: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the function from differences at these timesteps to delta, in a shape that broadcasts to them."""
        deltas_B = huber_deltas(process, timesteps_B, delta=self.delta, schedule=self.schedule)
        return lambda differences_BCHW: deltas_B.view(-1, *[1] * (differences_BCHW.dim() - 1))


class HuberSettings(DeltaSettings):
    """The Huber loss."""

    strength: Annotated[
        UpTo1000, _strength("Huber", "The weight of the Huber loss: quadratic below delta, linear above.")
    ] = 0.0


def _bind_huber(settings: DeltaSettings, process: NoiseProcess, timesteps_B: torch.Tensor) -> ElementLoss:
    formula, deltas = _FORMULAS[settings.form], settings.deltas(process, timesteps_B)
    return lambda differences_BCHW: formula(differences_BCHW, deltas(differences_BCHW))


HUBER = LossSpec("huber", "Huber", HuberSettings, _bind_huber, "huber_strength", "huber")


# Smooth L1 (Girshick 2015, eq. 3): the Huber loss divided by delta, so that its linear part has the slope 1. Its
# pseudo-Huber form is `2 (sqrt(d^2 + delta^2) - delta)`, sd-scripts' "smooth_l1".


class SmoothL1Settings(DeltaSettings):
    """The smooth L1 loss."""

    strength: Annotated[
        UpTo1000,
        _strength(
            "Smooth L1",
            "The weight of the smooth L1 loss: the Huber loss divided by delta, so that large errors count the same "
            "whatever delta is.",
        ),
    ] = 0.0
    delta: Annotated[float, Gt(0), Le(1000), _delta("Smooth L1")] = 1.0
    schedule: Annotated[HuberSchedule, _schedule("Smooth L1")] = "constant"
    form: Annotated[HuberForm, _form("Smooth L1")] = "huber"


def _bind_smooth_l1(settings: DeltaSettings, process: NoiseProcess, timesteps_B: torch.Tensor) -> ElementLoss:
    huber_loss, deltas = _bind_huber(settings, process, timesteps_B), settings.deltas(process, timesteps_B)
    return lambda differences_BCHW: huber_loss(differences_BCHW) / deltas(differences_BCHW)


SMOOTH_L1 = LossSpec("smooth_l1", "Smooth L1", SmoothL1Settings, _bind_smooth_l1, kohya_type="smooth_l1")


LOSSES: Mapping[str, LossSpec[Any]] = {
    spec.name: spec
    for spec in (
        MSE,
        MAE,
        LOG_COSH,
        HUBER,
        SMOOTH_L1,
    )
}

if TYPE_CHECKING:
    MixSettings = Section
else:
    MixSettings = create_model(
        "MixSettings",
        __base__=Section,
        __doc__="The losses that are mixed: the settings of each, by its name.",
        **{name: (spec.settings, spec.settings.with_defaults()) for name, spec in LOSSES.items()},
    )
