"""The noise images are learned under: what is added, and how much of it how often."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.settings.field import Section, Setting, When


class Noise(Section):
    """Noise beyond the plain Gaussian, and how its levels are drawn."""

    offset_weight: Annotated[
        float,
        Ge(0),
        Le(100),
        Setting(
            "Offset noise",
            "Adds one more number of noise for a whole channel, so that very dark and very bright images can be "
            "learned. 0.05 to 0.1 is usual.",
            group="Noise",
            level="advanced",
            not_yet="refused",
        ),
    ] = 0.0
    generalized_offset: Annotated[
        bool,
        Setting(
            "Offset by the noise level",
            "Offset noise grows with the noise level in place of being the same at all.",
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
            "Adds a second draw of noise, this strong (Ning et al. 2023).",
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
            "Lowest noise level",
            "Levels below this share of the whole range are not trained.",
            group="Noise",
            level="advanced",
            not_yet="refused",
        ),
    ] = 0.0
    max_strength: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Highest noise level",
            "Levels above this share of the whole range are not trained.",
            group="Noise",
            level="advanced",
            not_yet="refused",
        ),
    ] = 1.0
    distribution: Annotated[
        Literal["uniform", "sigmoid", "logit_normal", "heavy_tail", "cos_map", "inverted_parabola", "beta"],
        Setting(
            "Noise levels are drawn",
            "How often each noise level is trained. Evenly is what the models were trained with.",
            group="Noise",
            level="advanced",
            choice_labels={
                "uniform": "Evenly",
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
    distribution_weight: Annotated[
        float,
        Ge(-1000),
        Le(1000),
        Setting(
            "Shape of the draws",
            "How far the draws lean: the steepness, the spread or the first number of the curve, by its kind.",
            group="Noise",
            level="advanced",
            applies_when=When("distribution", ("sigmoid", "logit_normal", "heavy_tail", "inverted_parabola", "beta")),
        ),
    ] = 0.0
    distribution_bias: Annotated[
        float,
        Ge(-1000),
        Le(1000),
        Setting(
            "Middle of the draws",
            "Where the draws lean to: above 0 to more noise, below to less; the second number of Beta.",
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
            "Moves all draws to more noise (above 1) or less (below 1), as for large images.",
            group="Noise",
            level="advanced",
            not_yet="refused",
        ),
    ] = 1.0
