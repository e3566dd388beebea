"""Turning a base model into an inpainting model that predicts the same, for training.

Its UNet gets five more input channels whose weights are zero: the mask and the latents of the conditioning image have
no effect at first. RunwayML's inpainting model began like this (the model card of stable-diffusion-inpainting).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from modules.families.kinds.source import Source
from modules.families.registry import FAMILIES, published
from modules.formats.lazy_tensors import LazyTensor
from modules.system.errors import DarkroomError

_VARIANT = "inpainting"
_FIRST = "conv_in.weight"


def as_inpainting(source: Source) -> Source:
    """Return an opened base model as an inpainting model. Raises DarkroomError for any other file."""
    kind = source.kind
    supported = kind.is_model and _VARIANT in published(kind.model).pipelines
    if not supported or _VARIANT not in FAMILIES[kind.family].variants:
        raise DarkroomError(
            f"{source.path.name} cannot become an inpainting model. {kind.sentence}",
            advice="Choose a base model of SD 1.x, SD 2.x or SDXL.",
        )
    if kind.variant:
        raise DarkroomError(
            f"{source.path.name} is no base model. {kind.sentence}",
            advice="Convert it without --to-inpainting." if kind.variant == _VARIANT else "Choose a base model.",
        )
    [name] = FAMILIES[kind.family].names_of("denoiser")
    more = FAMILIES[kind.family].variants[_VARIANT]
    weight = source.states[name][_FIRST]
    state = {**source.states[name], _FIRST: _widened(weight, more)}
    return replace(
        source,
        kind=replace(kind, variant=_VARIANT),
        configs={**source.configs, name: {**source.configs[name], "in_channels": weight.shape[1] + more}},
        states={**source.states, name: state},
    )


def _widened(weight: LazyTensor, more: int) -> LazyTensor:
    """Return a convolution's weight with `more` input channels of zeros behind its own."""
    rows, columns, *kernel = weight.shape

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor.new_zeros(rows, more, *kernel)], dim=1)

    return weight.then((rows, columns + more, *kernel), widened)
