"""The layers of a model that adapter files can change, found by the names and the shapes in a file. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from modules.formats.adapter_forms import split_layer
from modules.formats.adapter_names import DOWN, MID, UP

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """A layer of a model: the part's name, the layer's dotted path in files, and the shape of its weight.

    `names` are its paths in all layouts, with underscores for dots.
    """

    part: str
    path: str
    names: tuple[str, ...]
    weight: Shape


@dataclass(frozen=True, slots=True)
class AdapterTargets:
    """All layers of a model that files can change, by name."""

    by_name: Mapping[tuple[str, str], tuple[AdapterTarget, ...]]

    @classmethod
    def of(cls, targets: Iterable[AdapterTarget]) -> AdapterTargets:
        """Return the targets by name, with and without their part."""
        found: dict[tuple[str, str], tuple[AdapterTarget, ...]] = {}
        for target in targets:
            for key in ((part, name) for part in (target.part, "") for name in dict.fromkeys(target.names)):
                found[key] = (*found.get(key, ()), target)
        return cls(found)

    def find(self, layer: str, shapes: Shapes) -> AdapterTarget | None:
        """Return the layer of the model that a layer of a file changes; None where the model has no such layer.

        `layer` is its name in the file and `shapes` are those of its factors by kohya's names. They decide where the
        name does not say which text encoder it is for.
        """
        found = self.by_name.get(split_layer(layer), ())
        return next((t for t in found if fits(shapes, t.weight)), found[0] if found else None)


def fits(shapes: Shapes, weight: Shape) -> bool:
    """Whether the factors of a layer can be for a weight (out, in, and height and width of a kernel).

    True where the shapes of the factors do not tell.
    """
    size = _size(shapes)
    if size is None or not weight:
        return True
    rows, columns = size
    inner = weight[1:]
    return rows in (0, weight[0]) and columns in (0, prod(inner), inner[0] if inner else 1)


def _size(shapes: Shapes) -> tuple[int, int] | None:
    """Return how many rows and columns the change of a layer has, 0 for unknown ones; None for unknown factors."""
    for first, last in ((DOWN, UP), ("hada_w1_b", "hada_w1_a")):
        if first in shapes or last in shapes:
            down, up = shapes.get(first, ()), shapes.get(last, ())
            is_tucker = "hada_t1" in shapes
            rows = (up[1] if is_tucker else up[0]) if len(up) > 1 else 0
            return rows, down[1] if len(down) > 1 else 0
    if lokr := _kronecker(shapes):
        return lokr
    for name in ("diff", "w_norm"):
        if shape := shapes.get(name):
            return shape[0], prod(shape[1:])
    if len(blocks := shapes.get("oft_blocks", ())) == 3:
        return blocks[0] * blocks[1], 0
    return None


def _kronecker(shapes: Shapes) -> tuple[int, int] | None:
    sides = []
    for side in ("lokr_w1", "lokr_w2"):
        whole, a, b = (shapes.get(f"{side}{end}", ()) for end in ("", "_a", "_b"))
        if len(whole) > 1:
            sides.append((whole[0], prod(whole[1:])))
        elif len(a) > 1 and len(b) > 1:
            is_tucker = side == "lokr_w2" and "lokr_t2" in shapes
            sides.append((a[1] if is_tucker else a[0], b[1]))
        else:
            return None
    return sides[0][0] * sides[1][0], sides[0][1] * sides[1][1]


def is_lora(factors: Iterable[str]) -> bool:
    """Whether the factors of a layer are those of LoRA, with Tucker's middle or without."""
    return {DOWN, UP} <= set(factors) <= {DOWN, UP, MID}
