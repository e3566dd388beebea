"""Weight dtypes against the precision: with two different 16-bit dtypes all weights are converted at every use."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.system.problem import Problem

_SIXTEEN_BITS = ("bfloat16", "float16")


def mixed_16_bit(config: Config) -> Iterator[Problem]:
    """Yield a warning for each part whose 16-bit weight dtype differs from the 16-bit precision.

    Without mixed precision a part computes in its own weight dtype and nothing is converted. The VAE always does: it
    runs outside autocast.
    """
    precision = config.training.precision
    if precision not in _SIXTEEN_BITS:
        return
    for part in FAMILIES[config.model.family].parts:
        dtype = config.part(part.name).dtype
        if part.role == "vae" or dtype not in _SIXTEEN_BITS or dtype == precision:
            continue
        yield Problem(
            f"parts.{part.name}.dtype",
            f"The weights of {part.label} are {dtype}, but the precision is {precision}: all of them are converted "
            "each time they are used, which is slow and loses precision.",
            "warning",
            f"Set the weight dtype to {precision}, or the precision to {dtype}.",
        )
