"""Fields, state and removed settings of the advanced optimizers (adv-optm), and of Muon, which they include."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

from modules.optim.spec import Shape, always
from modules.settings.field import advanced_setting
from modules.system.factories import Package
from modules.system.problem import Problem

CLASSES = "modules.optim.classes.advanced"
ADV_OPTM: dict[str, Any] = {
    "packages": (Package("adv_optm", distribution="adv-optm"),),
    "reads_memory_in_order": always,
}
"""The facts of all optimizers of adv-optm, which are in `CLASSES`."""
LOWEST_BETA2 = 0.9

CautiousDecay = Annotated[
    bool, advanced_setting("Cautious weight decay", "Decays only the weights whose update already points towards zero.")
]
FactoredState = Annotated[
    bool,
    advanced_setting("Factored state", "Stores the state as two vectors and a sign (NNMF): very little memory."),
]
Atan2 = Annotated[
    bool, advanced_setting("Use atan2", "Uses atan2 instead of a division: the update is bounded and needs no epsilon.")
]
OrthogonalGradient = Annotated[
    bool,
    advanced_setting(
        "Orthogonal gradient", "Removes the component of each gradient that only scales the weights (OrthoGrad)."
    ),
]

SIMPLIFIED_ADEMAMIX = ("Simplified_AdEMAMix", "alpha_grad")
"""Removed settings that several of them have."""


def average_bytes(shape: Shape, *, factored: bool, signed: bool = True) -> float:
    """Return the bytes of a running average of a weight's shape.

    A factored one is two vectors, as even as possible, and a bit for each sign (Park and Lee 2024, SMMF, section 3);
    vectors are never factored.
    """
    if not factored or len(shape) < 2:
        return 4.0 * math.prod(shape)
    rows, columns = even_factors(math.prod(shape))
    signs = rows * math.ceil(columns / 8) + 8 if signed else 0  # and a table of the eight bits
    return 4.0 * (rows + columns) + signs


def adam_averages_bytes(settings: Any, shape: Shape) -> float:
    """Return the bytes of the averages of gradients and of their squares, and of the norms behind a dynamic beta 2."""
    first = average_bytes(shape, factored=settings.nnmf_factor) if settings.beta1 > 0 else 0.0
    second = average_bytes(shape, factored=settings.nnmf_factor, signed=False)
    return first + second + (8.0 if settings.kourkoutas_beta else 0.0)


def even_factors(size: int) -> tuple[int, int]:
    """Return the two factors of a size that are closest to its root, the larger first."""
    smaller = next(n for n in range(math.isqrt(size), 0, -1) if size % n == 0)
    return size // smaller, smaller


def beta2_problems(settings: Any) -> Iterator[Problem]:
    """Yield an error where a dynamic beta 2 has no room below its largest value."""
    if settings.kourkoutas_beta and settings.beta2 <= LOWEST_BETA2:
        message = f"Kourkoutas beta lowers beta 2 down to {LOWEST_BETA2:g}, but beta 2 is {settings.beta2:g}."
        yield Problem("beta2", message, "error", "Set beta 2 above 0.9, such as 0.99, or switch Kourkoutas beta off.")
