"""Traits of a layer of an adapter file over which some programs stumble, from its shapes and its alpha. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

from modules.formats.adapter_damage import damage_in, damage_of_alpha, mismatch_in
from modules.formats.adapter_names import (
    DORA_SCALE,
    OFT_BLOCKS,
    RESCALE,
    Shape,
    dora_axis,
)
from modules.formats.adapter_targets import AdapterTarget, fits, layout_of

Trait = Literal[
    "damaged",
    "DoRA of outputs",
    "DoRA of inputs",
    "LoKr with Tucker",
    "low-rank LoKr of a kernel",
    "LoHa with four axes",
    "rescaled OFT",
    "constrained OFT",
    "inpainting conv_in",
    "SGM layout",
]
"""What programs differ in. "damaged": factors of different ranks or of rank 0, or an alpha that is not finite.
"constrained OFT": alpha is LyCORIS' limit of the rotations. "inpainting conv_in": the first layer with nine inputs."""

NO_LIMIT = 1024.0
"""The least alpha of an OFT that limits nothing in any program."""
_NINE = 9  # latents, masked image and mask


def traits_of(
    name: str,
    shapes: Mapping[str, Shape],
    target: AdapterTarget | None,
    alpha: float | None,
    *,
    is_inpainting: bool,
) -> frozenset[Trait]:
    """Return the traits of a layer: its name in the file, the shapes of its factors, its place in the model, its alpha.

    `target` is None for a layer that the model does not have, `alpha` where the file has none or it cannot be read.
    `is_inpainting`: the metadata name an inpainting model.
    """
    found = set(_traits(shapes, alpha))
    if target is not None:
        if layout_of(name, target) == "original":
            found.add("SGM layout")
        if {"lokr_w2_a", "lokr_w2_b"} <= shapes.keys() and "lokr_t2" not in shapes and math.prod(target.weight[2:]) > 1:
            found.add("low-rank LoKr of a kernel")
        if target.path == "conv_in" and (is_inpainting or _has_nine_inputs(shapes, target.weight)):
            found.add("inpainting conv_in")
    return frozenset(found)


def _traits(shapes: Mapping[str, Shape], alpha: float | None) -> Iterator[Trait]:
    if damage_in(shapes) or mismatch_in(shapes) or (alpha is not None and damage_of_alpha(alpha)):
        yield "damaged"
    if scale := shapes.get(DORA_SCALE):
        yield "DoRA of inputs" if dora_axis(scale) == "inputs" else "DoRA of outputs"
    if "lokr_t2" in shapes:
        yield "LoKr with Tucker"
    if len(shapes.get("hada_w1_a", ())) > 2 or len(shapes.get("hada_w1_b", ())) > 2:
        yield "LoHa with four axes"
    if OFT_BLOCKS in shapes:
        if RESCALE in shapes:
            yield "rescaled OFT"
        if alpha is not None and 0 < alpha < NO_LIMIT:
            yield "constrained OFT"


def _has_nine_inputs(shapes: Mapping[str, Shape], weight: Shape) -> bool:
    nine = (weight[0], _NINE, *weight[2:])
    return weight != nine and fits(shapes, nine) and not fits(shapes, weight)
