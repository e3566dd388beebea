"""Several devices for one run."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting, When

_SHARED = When("enabled", (True,))


class MultiGpu(Section):
    """Training on several GPUs of this machine at once, which share the images of each step."""

    enabled: Annotated[
        bool,
        Setting(
            "Multi-GPU training",
            "The GPUs share the images of each step, batch size times accumulation steps in all, and add up their "
            "gradients. The result is the same as on one GPU.",
            group="Several GPUs",
            level="advanced",
        ),
    ] = False
    device_indexes: Annotated[
        str,
        Setting(
            "GPUs",
            "Device indexes, separated by commas, such as 0, 1.",
            group="Several GPUs",
            level="advanced",
            applies_when=_SHARED,
            empty_means="all of them",
        ),
    ] = ""
    sharding: Annotated[
        Literal["auto", "on", "off"],
        Setting(
            "Sharding",
            "Shards the weights, gradients and optimizer state of a fine-tuned denoiser among the GPUs (FSDP), so that "
            "each needs a part of the memory, instead of keeping all of them on each GPU.",
            group="Several GPUs",
            level="advanced",
            applies_when=_SHARED,
            choice_labels={"auto": "Where supported", "on": "On", "off": "Off"},
        ),
    ] = "auto"
    reduce_precision: Annotated[
        Literal["float32", "float32_stochastic", "weights", "weights_stochastic"],
        Setting(
            "Gradient reduce dtype",
            "The dtype in which the gradients of the GPUs are reduced. With stochastic rounding less "
            "is lost where the weights are kept in 16 bits.",
            group="Several GPUs",
            level="advanced",
            applies_when=_SHARED,
            choice_labels={
                "float32": "float32",
                "float32_stochastic": "float32, stochastic rounding",
                "weights": "Weight dtype",
                "weights_stochastic": "Weight dtype, stochastic rounding",
            },
        ),
    ] = "float32_stochastic"
    fused_reduce: Annotated[
        bool,
        Setting(
            "Fused gradient reduce",
            "Sums the gradients of the GPUs while the backward pass continues, as soon as they are ready, instead of "
            "after it.",
            group="Several GPUs",
            level="advanced",
            applies_when=_SHARED,
        ),
    ] = True
    async_reduce: Annotated[
        bool,
        Setting(
            "Async gradient reduce",
            "The backward pass continues while gradients are transferred.",
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
            "Async reduce buffer",
            "How much may be in transfer at a time.",
            unit="MB",
            group="Several GPUs",
            level="advanced",
            applies_when=When("async_reduce", (True,)),
        ),
    ] = 100
