"""Adafactor (Shazeer and Stern 2018): little optimizer memory."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Lt

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.general import ClipThreshold, Epsilon, Epsilon2, FusedBackPass, WeightDecay, advanced
from modules.settings.field import When


class Adafactor(OptimizerSettings):
    """Adafactor (Shazeer and Stern 2018): little optimizer memory."""

    name: Literal["adafactor"] = "adafactor"
    eps: Epsilon = 1e-30
    eps2: Epsilon2 = 1e-3
    clip_threshold: ClipThreshold = 1.0
    beta2_decay: Annotated[
        float, Ge(-1), Le(0), advanced("Beta 2 decay", "How the running mean of squared gradients slows down.")
    ] = -0.8
    beta1: Annotated[
        float | None,
        Ge(0),
        Lt(1),
        advanced(
            "Beta 1",
            "How long a running mean of the updates remembers; it takes as much memory as the weights.",
            empty_means="no such mean",
        ),
    ] = None
    weight_decay: WeightDecay = 0.0
    scale_parameter: Annotated[
        bool,
        advanced("Scale with the weights", "Large weights move further: the rate is a share of their own size."),
    ] = False
    relative_step: Annotated[
        bool,
        advanced("Own learning rate", "The optimizer lowers its rate by itself, whatever is set.", not_yet="refused"),
    ] = False
    warmup_init: Annotated[
        bool,
        advanced(
            "Own warm-up",
            "The optimizer raises its own rate slowly at first.",
            applies_when=When("relative_step", (True,)),
            not_yet="refused",
        ),
    ] = False
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Adafactor) -> dict[str, Any]:
    return {
        "eps": (settings.eps, settings.eps2),
        "clip_threshold": settings.clip_threshold,
        "decay_rate": settings.beta2_decay,
        "beta1": settings.beta1,
        "weight_decay": settings.weight_decay,
        "scale_parameter": settings.scale_parameter,
        "relative_step": False,
    }


def _state_bytes(settings: Adafactor, shape: Shape) -> float:
    """A row and a column of squares instead of a matrix, and a mean of the updates where it is set."""
    size = math.prod(shape)
    factored = size if len(shape) < 2 else size // shape[-1] + size // shape[-2]
    return 4.0 * (factored + (size if settings.beta1 is not None else 0))


SPEC = OptimizerSpec(
    settings=Adafactor,
    label="Adafactor",
    # torch has an Adafactor as well; it always scales with the weights and keeps no mean of the updates.
    factory="transformers.optimization:Adafactor",
    arguments=_arguments,
    state_bytes=_state_bytes,
    saves_memory=True,
)
