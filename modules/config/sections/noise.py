"""The noise that training adds to latents, and how timesteps are sampled."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Interval

from modules.settings.conditions import USES_DENOISER
from modules.settings.field import Section, When, advanced_setting, one_of
from modules.settings.shared_types import Fraction, UpTo100
from modules.system.factories import late

if TYPE_CHECKING:
    from modules.diffusion.timesteps.sampling import TimestepSampling

_DISTRIBUTIONS = "modules.diffusion.timesteps.distributions"


class Noise(Section):
    """Noise beyond the plain Gaussian, and the timestep distribution."""

    group: ClassVar[str] = "Noise"
    applies_when: ClassVar[When | None] = USES_DENOISER

    offset_weight: Annotated[
        UpTo100,
        advanced_setting(
            "Offset noise",
            "Adds one random value per channel to the noise, so that very dark and very bright images can be "
            "learned. 0.05 to 0.1 is usual.",
        ),
    ] = 0.0
    generalized_offset: Annotated[
        bool,
        advanced_setting(
            "Generalized offset noise",
            "Scales offset noise with the noise level, instead of the same at all timesteps: in full at the last one, "
            "almost none on nearly clean images.",
            applies_when=When("offset_weight", is_set=True, otherwise=When("offset_adaptive_scale", is_set=True)),
        ),
    ] = False
    offset_random_strength: Annotated[
        bool,
        advanced_setting(
            "Random offset strength",
            "Multiplies the offset noise of each image by a random number from 0 to 1.",
            applies_when=When("offset_weight", is_set=True),
        ),
    ] = False
    offset_adaptive_scale: Annotated[
        float,
        *Interval(ge=-100, le=100),
        advanced_setting(
            "Adaptive offset scale",
            "Adds this times the absolute mean of each latent channel to the weight of the offset noise, so that dark "
            "and bright images get more of it.",
        ),
    ] = 0.0
    perturbation_weight: Annotated[
        UpTo100,
        advanced_setting(
            "Perturbation noise",
            "Adds a second sample of noise with this weight to the noisy latents and to the target, which only raises "
            "the variance of the noise.",
        ),
    ] = 0.0
    input_perturbation: Annotated[
        UpTo100,
        advanced_setting(
            "Input perturbation",
            "Adds a second sample of noise with this weight to the noisy latents, but not to the target, so that the "
            "model learns to correct its own errors (Ning et al. 2023). 0.1 is usual.",
        ),
    ] = 0.0
    input_perturbation_random_strength: Annotated[
        bool,
        advanced_setting(
            "Random input perturbation",
            "Multiplies the input perturbation of each image by a random number from 0 to 1.",
            applies_when=When("input_perturbation", is_set=True),
        ),
    ] = False
    pyramid_iterations: Annotated[
        int,
        *Interval(ge=0, le=16),
        advanced_setting(
            "Pyramid noise levels",
            "Adds coarser and coarser noise in this many levels, so that the model learns large areas of light and "
            "shadow (multi-resolution noise). 6 to 10 is usual; 0 is off.",
        ),
    ] = 0
    pyramid_discount: Annotated[
        Fraction,
        advanced_setting(
            "Pyramid noise discount",
            "How strong each level is compared with the level before. 0.1 to 0.3 is usual.",
            applies_when=When("pyramid_iterations", is_set=True),
        ),
    ] = 0.3
    min_strength: Annotated[
        Fraction,
        advanced_setting(
            "Min noising strength", "Timesteps below this fraction of the range are not trained.", group="Timesteps"
        ),
    ] = 0.0
    max_strength: Annotated[
        Fraction,
        advanced_setting(
            "Max noising strength", "Timesteps above this fraction of the range are not trained.", group="Timesteps"
        ),
    ] = 1.0
    distribution: Annotated[
        str,
        *one_of(late(f"{_DISTRIBUTIONS}:distribution_labels"), late(f"{_DISTRIBUTIONS}:distribution_help")),
        advanced_setting(
            "Timestep distribution",
            "",
            help_from=late(f"{_DISTRIBUTIONS}:help_on_all"),
            group="Timesteps",
            preview="modules.config.previews:timestep_preview",
        ),
    ] = "uniform"
    noising_weight: Annotated[
        float,
        *Interval(ge=-1000, le=1000),
        advanced_setting(
            "Noising weight",
            "The distribution's first parameter: steepness, spread, or alpha of Beta.",
            group="Timesteps",
            applies_when=When("distribution", late(f"{_DISTRIBUTIONS}:names_with_weight")),
        ),
    ] = 0.0
    noising_bias: Annotated[
        float,
        *Interval(ge=-1000, le=1000),
        advanced_setting(
            "Noising bias",
            "Shifts the distribution: above 0 to more noise, below 0 to less; beta of Beta.",
            group="Timesteps",
            applies_when=When("distribution", late(f"{_DISTRIBUTIONS}:names_with_bias")),
        ),
    ] = 0.0
    shift: Annotated[
        float,
        *Interval(gt=0, le=100),
        advanced_setting(
            "Shift",
            "Shifts all timesteps to more noise (above 1) or less (below 1), as for large images.",
            group="Timesteps",
        ),
    ] = 1.0
    dynamic_shift: Annotated[
        bool,
        advanced_setting(
            "Dynamic shift",
            "Also multiplies the shift by the square root of the pixels of an image over the pixels of the model's own "
            "resolution: larger images are trained with more noise, smaller ones with less. Models with a rule of "
            "their own use that.",
            group="Timesteps",
        ),
    ] = False
    stratification: Annotated[
        Literal["off", "stratified", "antithetic"],
        advanced_setting(
            "Stratified timesteps",
            "Spreads the timesteps of the images of a step evenly over the distribution, so that the loss varies less "
            "from step to step at no cost. Antithetic also mirrors them: each low timestep comes with a high one.",
            group="Timesteps",
            choice_labels={"off": "Off", "stratified": "Stratified", "antithetic": "Antithetic"},
        ),
    ] = "off"


def timestep_sampling_of(noise: Noise) -> "TimestepSampling":
    """Return how timesteps are sampled with these settings."""
    from modules.diffusion.timesteps.sampling import TimestepSampling  # the window needs it for its preview

    return TimestepSampling(
        distribution=noise.distribution,
        weight=noise.noising_weight,
        bias=noise.noising_bias,
        shift=noise.shift,
        is_dynamic=noise.dynamic_shift,
        strengths=(noise.min_strength, noise.max_strength),
        stratification=noise.stratification,
    )
