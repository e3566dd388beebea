"""Projected guidance of samples, which few families use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProjectedGuidance:
    """How samples are guided after their first steps: projected guidance (Sadat et al. 2024, arXiv 2410.02416).

    In the first `plain_steps` a guidance scale is applied as usual. Then the difference that guidance makes is summed
    over the steps with a `momentum`, limited to the norm `most_norm`, made orthogonal to the prediction for the prompt,
    and multiplied by `scale`.
    """

    plain_steps: int
    scale: float = 10.0
    momentum: float = -0.5
    most_norm: float = 10.0
