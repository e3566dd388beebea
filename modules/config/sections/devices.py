"""More than one device for one run."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting, When

_SHARED = When("enabled", (True,))


class MultiGpu(Section):
    """Training on several GPUs of this machine at once, each with its own batch."""

    enabled: Annotated[
        bool,
        Setting(
            "Train on several GPUs",
            "Each GPU learns from a batch of its own, and the gradients are brought together for every step.",
            group="Several GPUs",
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    device_indexes: Annotated[
        str,
        Setting(
            "GPUs",
            "Which of them, by number and separated by commas, as in 0, 1.",
            group="Several GPUs",
            level="advanced",
            applies_when=_SHARED,
            empty_means="all of them",
        ),
    ] = ""
    reduce_precision: Annotated[
        Literal["float32", "float32_stochastic", "weights", "weights_stochastic"],
        Setting(
            "Gradients are added in",
            "The number format in which the gradients of the GPUs are brought together. With stochastic rounding less "
            "is lost where the weights are kept in 16 bits.",
            group="Several GPUs",
            level="advanced",
            applies_when=_SHARED,
            choice_labels={
                "float32": "float32",
                "float32_stochastic": "float32, rounded stochastically",
                "weights": "The format of the weights",
                "weights_stochastic": "The format of the weights, rounded stochastically",
            },
        ),
    ] = "float32_stochastic"
    fused_reduce: Annotated[
        bool,
        Setting(
            "Gather gradients early",
            "Gradients travel as soon as they are known, and need not all be kept until the end of the backward pass.",
            group="Several GPUs",
            level="advanced",
            applies_when=_SHARED,
        ),
    ] = True
    async_reduce: Annotated[
        bool,
        Setting(
            "Do not wait for gradients",
            "The backward pass goes on while gradients travel.",
            group="Several GPUs",
            level="advanced",
            applies_when=_SHARED,
        ),
    ] = True
    async_reduce_buffer_mb: Annotated[
        int,
        Ge(1),
        Le(65536),
        Setting(
            "Buffer for gradients",
            "How much may be on its way at a time.",
            unit="MB",
            group="Several GPUs",
            level="advanced",
            applies_when=When("async_reduce", (True,)),
        ),
    ] = 100
