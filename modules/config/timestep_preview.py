"""The histogram of a config's timesteps for the window, from the table that the draws use. Torch-free."""

from __future__ import annotations

from modules.config.method_facts import method_of, settings_of_method
from modules.config.schema import Config
from modules.config.sections.noise import timestep_sampling_of
from modules.settings.shared_types import BarPreview, side_of

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
