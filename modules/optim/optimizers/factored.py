"""Optimizers that keep squares of gradients as rows and columns: Adafactor and CAME."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Interval

from modules.optim.spec import DARKROOM, OptimizerSettings, OptimizerSpec, Shape, always, by_name
from modules.optim.terms import fields
from modules.optim.terms.shared_records import BITSANDBYTES
from modules.settings.field import When, advanced_setting
from modules.settings.shared_types import Decay
from modules.system.problem import Problem

_SIZES = (64, 128, 256, 512, 1024, 2048, 4096)  # of bitsandbytes' kernels


class Adafactor(OptimizerSettings):
    """Adafactor (Shazeer and Stern 2018): needs very little memory for its state."""

    name: Literal["adafactor"] = "adafactor"
    eps: fields.Epsilon = 1e-30
    eps2: fields.Epsilon2 = 1e-3
    clip_threshold: Annotated[
        float,
        *Interval(ge=1, le=100),
        advanced_setting("Clip threshold", "Scales updates with a larger RMS down to this value."),
    ] = 1.0
    beta2_decay: Annotated[
        float,
        *Interval(ge=-1, le=0),
        advanced_setting("Decay rate", "How fast the decay of the squared-gradient average approaches 1."),
    ] = -0.8
    beta1: Annotated[
        Decay | None,
        advanced_setting(
            "Beta 1",
            "Decay of a running average of updates, which takes as much memory as the weights.",
            empty_means="no running average",
        ),
    ] = None
    weight_decay: fields.WeightDecay = 0.0
    scale_parameter: Annotated[
        bool,
        advanced_setting("Scale parameter", "Scales the learning rate by the RMS of each weight tensor."),
    ] = False
    relative_step: Annotated[
        bool,
        advanced_setting(
            "Relative step",
            "The optimizer chooses its learning rate, which falls with the square root of the step, and ignores the "
            "one set here and its schedule.",
        ),
    ] = False
    warmup_init: Annotated[
        bool,
        advanced_setting(
            "Warmup init",
            "The optimizer warms its own learning rate up, by a millionth per step.",
            applies_when=When("relative_step", (True,)),
        ),
    ] = False
    fused_back_pass: fields.FusedBackPass = False


class _CameSettings(OptimizerSettings):
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    beta3: Annotated[Decay, advanced_setting("Beta 3", "Decay of the running average of the updates' instability.")] = (
        0.9999
    )
    eps: fields.Epsilon = 1e-30
    eps2: fields.Epsilon2 = 1e-16
    weight_decay: fields.WeightDecay = 0.01
    fused_back_pass: fields.FusedBackPass = False


class Came(_CameSettings):
    """CAME (Luo et al. 2023): Adafactor with larger steps where updates are stable."""

    name: Literal["came"] = "came"
    use_cautious: fields.Cautious = False


class Came8bit(_CameSettings):
    """CAME with an 8-bit average of updates."""

    name: Literal["came_8bit"] = "came_8bit"
    min_8bit_size: fields.Smallest8Bit = 16384
    quant_block_size: Annotated[
        int,
        *Interval(ge=1, le=1_000_000),
        advanced_setting(
            "Block size", "How many values of the 8-bit state share a scale: a power of 2, 64 to 4096.", unit="weights"
        ),
    ] = 2048


def _adafactor_state_bytes(settings: Adafactor, shape: Shape) -> float:
    """A row and a column of squares instead of a matrix, and the running average of updates where beta 1 is set."""
    size = math.prod(shape)
    factored = size if len(shape) < 2 else size // shape[-1] + size // shape[-2]
    return 4.0 * (factored + (size if settings.beta1 is not None else 0))


ADAFACTOR = OptimizerSpec(
    Adafactor,
    "Adafactor",
    # torch also has an Adafactor, but it always scales by the weights and has no running average of updates.
    "modules.optim.classes.factored:RelativeAdafactor",
    library="transformers",
    arguments=by_name({"beta2_decay": "decay_rate"}, more=lambda s: {"warmup_init": s.relative_step and s.warmup_init}),
    state_bytes=_adafactor_state_bytes,
    waits_per_weight=lambda settings: settings.scale_parameter,
    effective_rate=lambda group: group.get("chosen_rate"),
    chooses_rate=lambda settings: settings.relative_step,
    saves_memory=True,
)


def _came_state_bytes(settings: Came | Came8bit, shape: Shape) -> float:
    """The average of updates, in 8 bits if it is large, and the averages of squares, factored if there are rows."""
    size = math.prod(shape)
    if isinstance(settings, Came8bit) and size >= settings.min_8bit_size:
        average = size + 4.0 * math.ceil(size / settings.quant_block_size)
    else:
        average = 4.0 * size
    return average + 4.0 * (size if len(shape) < 2 else 2 * (size // shape[-1] + size // shape[-2]))


_OURS: dict[str, Any] = {"library": DARKROOM, "state_bytes": _came_state_bytes}

CAME = OptimizerSpec(Came, "CAME", "modules.optim.classes.factored:Came", **_OURS)


def _came_8bit_problems(settings: Came8bit) -> Iterator[Problem]:
    if settings.quant_block_size not in _SIZES:
        sizes = ", ".join(map(str, _SIZES[:-1]))
        message = f"bitsandbytes does not quantize in blocks of {settings.quant_block_size} values."
        yield Problem("quant_block_size", message, "error", f"Set the block size to {sizes} or {_SIZES[-1]}.")


CAME_8BIT = OptimizerSpec(
    Came8bit,
    "CAME 8-bit",
    CAME.factory,
    packages=(BITSANDBYTES,),
    reads_memory_in_order=always,
    problems=_came_8bit_problems,
    **_OURS,
)
