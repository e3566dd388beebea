"""The noise that training adds to latents, and how timesteps are sampled."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.settings.field import Section, Setting, When


class Noise(Section):
    """Noise beyond the plain Gaussian, and the timestep distribution."""

    offset_weight: Annotated[
        float,
        Ge(0),
        Le(100),
        Setting(
            "Offset noise",
            "Adds one random value per channel to the noise, so that very dark and very bright images can be "
            "learned. 0.05 to 0.1 is usual.",
            group="Noise",
            level="advanced",
            not_yet="refused",
        ),
    ] = 0.0
    generalized_offset: Annotated[
        bool,
        Setting(
            "Generalized offset noise",
            "Scales offset noise with the noise level, instead of the same at all timesteps.",
            group="Noise",
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    perturbation_weight: Annotated[
        float,
        Ge(0),
        Le(100),
        Setting(
            "Perturbation noise",
            "Adds a second sample of noise with this weight (Ning et al. 2023).",
            group="Noise",
            level="advanced",
            not_yet="refused",
        ),
    ] = 0.0
    min_strength: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Min noising strength",
            "Timesteps below this fraction of the range are not trained.",
            group="Noise",
            level="advanced",
        ),
    ] = 0.0
    max_strength: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Max noising strength",
            "Timesteps above this fraction of the range are not trained.",
            group="Noise",
            level="advanced",
        ),
    ] = 1.0
    distribution: Annotated[
        Literal["uniform", "sigmoid", "logit_normal", "heavy_tail", "cos_map", "inverted_parabola", "beta"],
        Setting(
            "Timestep distribution",
            "How often each timestep is trained. The models were trained with the uniform distribution.",
            group="Noise",
            level="advanced",
            choice_labels={
                "uniform": "Uniform",
                "sigmoid": "Sigmoid",
                "logit_normal": "Logit-normal",
                "heavy_tail": "Heavy tail",
                "cos_map": "Cosine map",
                "inverted_parabola": "Inverted parabola",
                "beta": "Beta",
            },
            not_yet_choices=frozenset(
                {"sigmoid", "logit_normal", "heavy_tail", "cos_map", "inverted_parabola", "beta"}
            ),
        ),
    ] = "uniform"
    noising_weight: Annotated[
        float,
        Ge(-1000),
        Le(1000),
        Setting(
            "Noising weight",
            "The distribution's first parameter: steepness, spread, or alpha of Beta.",
            group="Noise",
            level="advanced",
            applies_when=When("distribution", ("sigmoid", "logit_normal", "heavy_tail", "inverted_parabola", "beta")),
        ),
    ] = 0.0
    noising_bias: Annotated[
        float,
        Ge(-1000),
        Le(1000),
        Setting(
            "Noising bias",
            "Shifts the distribution: above 0 to more noise, below 0 to less; beta of Beta.",
            group="Noise",
            level="advanced",
            applies_when=When("distribution", ("sigmoid", "logit_normal", "inverted_parabola", "beta")),
        ),
    ] = 0.0
    shift: Annotated[
        float,
        Gt(0),
        Le(100),
        Setting(
            "Shift",
            "Shifts all timesteps to more noise (above 1) or less (below 1), as for large images.",
            group="Noise",
            level="advanced",
            not_yet="refused",
        ),
    ] = 1.0
