"""The visible damage of an adapter file, from its header and its alphas: the only place that decides it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from modules.formats.adapter_names import (
    ALPHA,
    DORA_SCALE,
    DOWN,
    LOHA_FACTORS,
    LOKR_FACTORS,
    LORA_FACTORS,
    MID,
    UP,
    Shape,
    tensors_by_layer,
)
from modules.formats.checkpoint_header import CheckpointHeader, read_scalars

LARGEST_ALPHA = 1e6
"""Alphas are of the order of the rank."""
_MATRICES = (LORA_FACTORS | LOHA_FACTORS | LOKR_FACTORS) - {DORA_SCALE}
_BY_RANK = frozenset({DOWN, "hada_w1_b", "hada_w2_b", "lokr_w1_b", "lokr_w2_b"})  # their first axis is the rank
_MOST_LAYERS = 20_000
# Factors that are multiplied with each other, and which axis of each has the rank.
_PRODUCTS: tuple[tuple[tuple[str, int], tuple[str, int]], ...] = (
    ((UP, 1), (DOWN, 0)),
    *((("hada_w1_a", 1), ("hada_w1_b", 0)), (("hada_w2_a", 1), ("hada_w2_b", 0))),
    *((("lokr_w1_a", 1), ("lokr_w1_b", 0)), (("lokr_w2_a", 1), ("lokr_w2_b", 0))),
)
# The same with a core between them, of shape (rank, rank, height, width), by the core.
_CORES: Mapping[str, tuple[tuple[str, int], tuple[str, int]]] = {
    MID: ((UP, 1), (DOWN, 0)),
    "hada_t1": (("hada_w1_a", 0), ("hada_w1_b", 0)),
    "hada_t2": (("hada_w2_a", 0), ("hada_w2_b", 0)),
    "lokr_t2": (("lokr_w2_a", 0), ("lokr_w2_b", 0)),
}


def damage_in_file(header: CheckpointHeader) -> str:
    """Return the damage of an adapter file, as a clause with the layer: "at x: its alpha is nan"; empty if nothing
    is.

    No program computes anything useful with such a layer. Values of the matrices are not read.
    """
    layers = dict(list(tensors_by_layer(header.shapes).items())[:_MOST_LAYERS])
    for layer, names in layers.items():
        shapes = {factor: header.shapes[name] for factor, name in names.items()}
        if damage := damage_in(shapes) or mismatch_in(shapes):
            return f"at {layer}: {damage}"
    alphas = {names[ALPHA]: layer for layer, names in layers.items() if ALPHA in names}
    for name, alpha in read_scalars(header, alphas).items():
        if damage := damage_of_alpha(alpha):
            return f"at {alphas[name]}: {damage}"
    return ""


def damage_of_alpha(alpha: float) -> str:
    """Return the error in an alpha, as a clause; empty if it is valid."""
    return "" if abs(alpha) <= LARGEST_ALPHA else f"its alpha is {alpha:g}"  # NaN is not below anything


def damage_in(shapes: Mapping[str, Shape]) -> str:
    """Return the error in the shapes of a LoRA, LoHa or LoKr layer alone, as a clause; empty if they are possible.

    A matrix that is a single number has no axes to read, and a rank of 0 would divide alpha by 0.
    """
    for name, shape in shapes.items():
        if name in _MATRICES and not shape:
            return f"its {name} is a single number instead of a matrix"
        if name in _BY_RANK and not shape[0]:
            return f"its {name} has no rows"
        if name in _MATRICES and not prod(shape):
            return f"its {name} has no values"
    return ""


def mismatch_in(shapes: Mapping[str, Shape]) -> str:
    """Return which matrices of a LoRA, LoHa or LoKr layer cannot be multiplied, as a clause; empty if all can."""
    return next(_mismatches(shapes), "")


def _mismatches(shapes: Mapping[str, Shape]) -> Iterator[str]:
    with_core = {first for core, (first, _) in _CORES.items() if core in shapes}
    for first, last in _PRODUCTS:
        if {first[0], last[0]} <= shapes.keys() and not with_core & {first, (first[0], 0)}:
            ranks = [_axis(shapes[name], axis) for name, axis in (first, last)]
            if ranks[0] != ranks[1]:
                yield f"its {first[0]} and {last[0]} have different ranks, {ranks[0]} and {ranks[1]}"
    for core, sides in _CORES.items():
        for number, (name, axis) in enumerate(sides):
            if core in shapes and name in shapes:
                ranks = [_axis(shapes[core], number), _axis(shapes[name], axis)]
                if ranks[0] != ranks[1]:
                    yield f"its {core} and {name} have different ranks, {ranks[0]} and {ranks[1]}"


def _axis(shape: Shape, axis: int) -> int:
    return shape[axis] if len(shape) > axis else 0
