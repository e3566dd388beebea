"""The visible damage of an adapter file, from its header and its alphas: the only place that decides it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import prod

from modules.formats.adapter_names import tensors_by_layer
from modules.formats.adapter_types import ALPHA, Product, Shape, Shapes, adapter_type, adapter_types
from modules.formats.checkpoint_header import CheckpointHeader, read_scalars

LARGEST_ALPHA = 1e6
"""Alphas are of the order of the rank."""
_MAX_LAYERS = 20_000


def damage_in_file(header: CheckpointHeader) -> str:
    """Return the damage of an adapter file, as a clause with the layer: "at x: its alpha is nan"; empty without damage.

    No program computes anything useful with such a layer. Values of the matrices are not read.
    """
    layers = dict(list(tensors_by_layer(header.shapes).items())[:_MAX_LAYERS])
    for layer, names in layers.items():
        shapes = {factor: header.shapes[name] for factor, name in names.items()}
        if damage := damage_in(shapes) or mismatch_in(shapes):
            return f"at {layer}: {damage}"
    alphas = {names[ALPHA]: layer for layer, names in layers.items() if ALPHA in names}
    for name, alpha in read_scalars(header, alphas).items():
        layer = alphas[name]
        if damage := damage_of_alpha(alpha, {factor: header.shapes[n] for factor, n in layers[layer].items()}):
            return f"at {layer}: {damage}"
    return ""


def damage_of_alpha(alpha: float, shapes: Shapes) -> str:
    """Return the error in the alpha of a layer with factors of these shapes, as a clause; empty if there is none.

    An alpha that scales nothing may be any number.
    """
    if abs(alpha) <= LARGEST_ALPHA:
        return ""
    known = adapter_type(shapes.keys() - {ALPHA})
    return "" if known is not None and not known.has_scale(shapes) else f"its alpha is {alpha:g}"


def damage_in(shapes: Mapping[str, Shape]) -> str:
    """Return a clause on the first matrix of a layer whose shape is wrong; empty if all are right.

    A matrix that is a single number has no axes to read, and a rank of 0 would divide alpha by 0.
    """
    matrices, ranked = _matrices()
    for name, shape in shapes.items():
        if name in matrices and not shape:
            return f"its {name} is a single number instead of a matrix"
        if name in ranked and not shape[0]:
            return f"its {name} has no rows"
        if name in matrices and not prod(shape):
            return f"its {name} has no values"
    return ""


@cache
def _matrices() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of all matrices that are multiplied, and the names of the ones whose first axis is the rank."""
    types = [t for t in adapter_types() if t.products]
    ranked = frozenset(product.last for t in types for product in t.products)
    return frozenset().union(*(t.factors for t in types)), ranked


def mismatch_in(shapes: Mapping[str, Shape]) -> str:
    """Return which matrices of a layer cannot be multiplied, as a clause; empty if all can."""
    products = (product for t in adapter_types() if shapes.keys() & t.factors for product in t.products)
    return next((error for product in products for error in _mismatches(product, shapes)), "")


def _mismatches(product: Product, shapes: Mapping[str, Shape]) -> Iterator[str]:
    """Yield the ranks in which the factors of a product differ; a core is between the two."""
    pairs = [((product.first, 1), (product.last, 0))]
    if product.core in shapes:
        pairs = [((product.core, 0), (product.first, product.core_axis)), ((product.core, 1), (product.last, 0))]
    for (first, axis), (last, other) in pairs:
        if first in shapes and last in shapes:
            ranks = _axis(shapes[first], axis), _axis(shapes[last], other)
            if ranks[0] != ranks[1]:
                yield f"its {first} and {last} have different ranks, {ranks[0]} and {ranks[1]}"


def _axis(shape: Shape, axis: int) -> int:
    return shape[axis] if len(shape) > axis else 0
