"""Adafactor (Shazeer and Stern 2018): needs very little memory for its state."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Lt

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.general import ClipThreshold, Epsilon, Epsilon2, FusedBackPass, WeightDecay, advanced
from modules.settings.field import When


class Adafactor(OptimizerSettings):
    """Adafactor (Shazeer and Stern 2018): needs very little memory for its state."""

    name: Literal["adafactor"] = "adafactor"
    eps: Epsilon = 1e-30
    eps2: Epsilon2 = 1e-3
    clip_threshold: ClipThreshold = 1.0
    beta2_decay: Annotated[
        float, Ge(-1), Le(0), advanced("Decay rate", "How fast the decay of the squared-gradient average approaches 1.")
    ] = -0.8
    beta1: Annotated[
        float | None,
        Ge(0),
        Lt(1),
        advanced(
            "Beta 1",
            "Decay of a running average of updates, which takes as much memory as the weights.",
            empty_means="no running average",
        ),
    ] = None
    weight_decay: WeightDecay = 0.0
    scale_parameter: Annotated[
        bool,
        advanced("Scale parameter", "Scales the learning rate by the RMS of each weight tensor."),
    ] = False
    relative_step: Annotated[
        bool,
        advanced(
            "Relative step",
            "The optimizer chooses its learning rate, which falls with the square root of the step, and ignores the "
            "one set here and its schedule.",
        ),
    ] = False
    warmup_init: Annotated[
        bool,
        advanced(
            "Warmup init",
            "The optimizer warms its own learning rate up, by a millionth per step.",
            applies_when=When("relative_step", (True,)),
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
        "relative_step": settings.relative_step,
        "warmup_init": settings.relative_step and settings.warmup_init,
    }


def _state_bytes(settings: Adafactor, shape: Shape) -> float:
    """A row and a column of squares instead of a matrix, and the running average of updates where beta 1 is set."""
    size = math.prod(shape)
    factored = size if len(shape) < 2 else size // shape[-1] + size // shape[-2]
    return 4.0 * (factored + (size if settings.beta1 is not None else 0))


SPEC = OptimizerSpec(
    settings=Adafactor,
    label="Adafactor",
    # torch also has an Adafactor, but it always scales by the weights and has no running average of updates.
    factory="modules.optim.classes.relative_adafactor:RelativeAdafactor",
    library="transformers",
    arguments=_arguments,
    state_bytes=_state_bytes,
    waits_per_weight=lambda settings: settings.scale_parameter,
    effective_rate=lambda group: group.get("chosen_rate"),
    chooses_rate=lambda settings: settings.relative_step,
    saves_memory=True,
)
