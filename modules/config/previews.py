"""The previews that the window draws below groups of settings."""

from __future__ import annotations

import math

from modules.config.schema import Config
from modules.config.sections.noise import timestep_sampling_of
from modules.config.usage import method_of, settings_of_method
from modules.optim.registry import optimizer_spec
from modules.optim.schedule_registry import SCHEDULES, factors_over_run, learning_rate_factor, warmup_length
from modules.settings.bar_preview import BarPreview
from modules.settings.shared_types import side_of
from modules.system.errors import DarkroomError
from modules.system.problem import count

# What the chosen optimizer needs and keeps, for the window, from the facts that the estimate and preflight read.

_LARGE = (1280, 1280)  # a usual weight of a UNet


def optimizer_preview(config: Config, total_steps: int = 0) -> BarPreview:
    """Return a caption without bars: the state, the usual learning rates, and what is missing or special."""
    del total_steps
    settings = config.training.optimizer
    spec = optimizer_spec(settings)
    num_bytes = spec.state_bytes(settings, _LARGE) / math.prod(_LARGE)
    usual = spec.rates.full if config.training.trains == "full" else spec.rates.adapter
    target = "a fine-tune" if config.training.trains == "full" else "an adapter"
    missing = [p.distribution or p.name for p in spec.packages_of(settings) if not p.is_installed]
    needed = [p.distribution or p.name for p in spec.packages_of(settings)]
    facts = [
        f"{spec.label} keeps {num_bytes:.2g} bytes of state per trained weight: {num_bytes:.2g} MB for each million.",
        f"Usual learning rate for {target}: {usual.usual}.",
        f"Needs the package {', '.join(needed)}{', which is not installed' if missing else ''}." if needed else "",
        "It can update weights during the backward pass (fused), which saves the memory of gradients."
        if spec.can_fuse
        else "",
        "Validation, samples and saved files use its averaged weights." if spec.has_evaluation_mode(settings) else "",
    ]
    return BarPreview((), 1.0, "", "", " ".join(fact for fact in facts if fact))


# The learning rate over a run for the window, from the function that the run uses.

_NUM_POINTS = 240
_EXAMPLE_STEPS = 1000


def schedule_preview(config: Config, total_steps: int = 0) -> BarPreview:
    """Return the learning rate at steps from the first to the last, relative to the one that is set.

    `total_steps` is the length of the run; 0 if it is not known yet: then the caption names the length that is assumed.
    It is empty for invalid settings, whose fields show what is wrong.
    """
    training = config.training
    if any(SCHEDULES[training.schedule.name].problems(training.schedule)):
        return BarPreview((), 1.0, "", "", "")
    length = total_steps or max(_EXAMPLE_STEPS, 2 * warmup_length(training.schedule, _EXAMPLE_STEPS))
    try:
        points = factors_over_run(
            lambda step: learning_rate_factor(
                training.schedule,
                step=step,
                total_steps=length,
                epochs=training.epochs,
                learning_rate=training.learning_rate,
            ),
            length,
            num_points=_NUM_POINTS,
        )
    except DarkroomError as error:
        return BarPreview((), 1.0, "", "", error.message)
    factors = tuple(factor for _, factor in points)
    return BarPreview(
        factors, 1.0, "step 1", f"step {length:,}", _caption(config, factors, length, is_known=bool(total_steps)), True
    )


def _caption(config: Config, factors: tuple[float, ...], length: int, *, is_known: bool) -> str:
    training = config.training
    optimizer = optimizer_spec(training.optimizer)
    if optimizer.chooses_rate is not None and optimizer.chooses_rate(training.optimizer):
        return f"{optimizer.label} chooses its learning rate itself."
    highest, last = (f"{training.learning_rate * factor:.3g}" for factor in (max(factors), factors[-1]))
    if min(factors) == max(factors):
        return f"Learning rate: {highest} throughout."
    where = "" if is_known else f", in a run of {count(length, 'step')} for example"
    return f"Learning rate: {highest} at its highest, {last} at the end{where}."


# The histogram of a config's timesteps for the window, from the table that the draws use.

_NUM_BARS = 50
_NUM_TIMESTEPS = 1000


def timestep_preview(config: Config, total_steps: int = 0) -> BarPreview:
    """Return how often each fiftieth of the timesteps is trained, at the first of the resolutions.

    Only the dynamic shift depends on the resolution.
    """
    sampling = timestep_sampling_of(config.training.noise)
    wrong = sampling.problem
    if sampling.strengths[0] >= sampling.strengths[1]:
        wrong = "no timestep is between the min and the max noising strength"
    if wrong:
        return BarPreview((), 0.0, "", "", f"{wrong[:1].upper()}{wrong[1:]}.")
    side_px, family = side_of(config.data.resolution_px[0]), config.family
    process, own_px = family.process, family.default_resolution_px
    size_shift = process.size_shift(width_px=side_px, height_px=side_px, own_px=own_px)
    bars = sampling.describe(num_bins=_NUM_BARS, num_timesteps=_NUM_TIMESTEPS, size_shift=size_shift)
    middle = sum((number + 0.5) * share for number, share in enumerate(bars)) / _NUM_BARS
    caption = f"How often each timestep is trained; the average is {middle * _NUM_TIMESTEPS:.0f}"
    if sampling.is_dynamic:
        caption += f" at {side_px:,} px"
    if not method_of(config).adds_noise(settings_of_method(config)):
        caption = f"{method_of(config).label} does not use these settings"
    last = _NUM_TIMESTEPS if process.is_continuous else _NUM_TIMESTEPS - 1
    return BarPreview(bars, 1 / _NUM_BARS, "0: clean image", f"{last}: noise", f"{caption}.")
