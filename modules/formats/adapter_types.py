"""The types of changes that adapter files hold for a layer, such as a low-rank product, and how to recognize them.

The types that are trained here are described in the records of their adapters, the others below. The records are named
like a factory and not imported: they also hold settings, and this package may not import those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import NamedTuple

from modules.formats.program_table import PROGRAMS, UNKNOWN, Answers, plain_lora_only
from modules.system.factories import load_factory

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
"""The shapes of a layer's factors by kohya's names."""
_ADAPTERS = "modules.adapters.registry:ADAPTERS"
ALPHA, DORA_SCALE = "alpha", "dora_scale"
BIASES = frozenset({"diff_b", "b_norm"})
DIFFERENCES = frozenset({"diff", "w_norm"})


def _lacks_nothing(names: frozenset[str]) -> Iterator[str]:
    yield from ()


class Product(NamedTuple):
    """Two factors that are multiplied: `first`, with the rank at its second axis, and `last`, with the rank first.

    `core` is the factor of shape (rank, rank, height, width) that a Tucker form has between them; there the axis of
    `first` is `core_axis`.
    """

    first: str
    last: str
    core: str = ""
    core_axis: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class AdapterType:
    """A type of change, as files hold it.

    `factors` are the names of a layer's tensors as in kohya's and LyCORIS' files, without alpha and DoRA's scale;
    `markers` are other tensors that a file may have. `missing_factors(names)` yields the factors that an incomplete
    layer lacks. `products` are the pairs of factors that are multiplied. `size(shapes)` returns how many rows and
    columns the change has, 0 for an unknown number, or None if these are not its factors.

    `acts(shapes)`: the change by such factors can be computed here, by the function that `change` names
    ("module:function"), with `change(factors, alpha, weight)`. `depends_on_weight`: it is not the same for every
    weight. A strength is multiplied into the first of `scaled` that a layer has. `takes_dora`: DoRA's scale is one of
    its factors. `has_scale(shapes)`: alpha scales the change by such factors; where it does not, files may contain any
    number as alpha. `read` names a function `read(factors, alpha, rank)` that returns the factors of other programs as
    in LyCORIS' files; `peft_alpha` is PEFT's name of its alpha.

    `row_factors` are the factors of which each row belongs to one output of the layer, if the change of some outputs is
    the change by these rows; without any it cannot be divided.

    `algo` is LyCORIS' name. `rows(shapes, alpha)` yields the rows of `programs` that a layer belongs to: which programs
    load it, in addition to the shared rows of `program_table`.
    """

    label: str
    factors: frozenset[str]
    markers: frozenset[str] = frozenset()
    missing_factors: Callable[[frozenset[str]], Iterator[str]] = _lacks_nothing
    products: tuple[Product, ...] = ()
    size: Callable[[Shapes], tuple[int, int] | None] = lambda shapes: None
    acts: Callable[[Shapes], bool] = lambda shapes: False
    change: str = ""
    depends_on_weight: bool = False
    scaled: tuple[str, ...] = ()
    takes_dora: bool = False
    has_scale: Callable[[Shapes], bool] = lambda shapes: True
    read: str = ""
    peft_alpha: str = ""
    row_factors: frozenset[str] = frozenset()
    algo: str = ""
    rows: Callable[[Shapes, float | None], Iterable[str]] = lambda shapes, alpha: ("unknown",)
    programs: Mapping[str, Answers] = field(default_factory=dict)

    def has_tucker_core(self, names: Iterable[str]) -> bool:
        """Return whether factors are in Tucker's form, in which kernels larger than 1x1 are decomposed."""
        return bool({product.core for product in self.products if product.core} & set(names))


def product_size(first: Shape, last: Shape, *, is_tucker: bool = False) -> tuple[int, int]:
    """Return the rows and columns of a product of matrices (rows, rank) and (rank, columns), 0 for unknown ones.

    In LyCORIS' Tucker form the first one is (rank, rows).
    """
    rows = first[1 if is_tucker else 0] if len(first) > 1 else 0
    return rows, last[1] if len(last) > 1 else 0


_GLORA = AdapterType(
    "GLoRA",
    frozenset(f"{name}{bias}.weight" for name in ("a1", "a2", "b1", "b2") for bias in ("", ".bm")),
    algo="glora",
    rows=lambda shapes, alpha: ("GLoRA",),
    programs={"GLoRA": {**dict.fromkeys(PROGRAMS, UNKNOWN), **plain_lora_only("GLoRA")}},
)
# LyCORIS' has a "weight" as well; the other name is PEFT's.
_IA3 = AdapterType("IA3", frozenset({"on_input", "ia3_l"}), algo="ia3")


def _size_of_difference(shapes: Shapes) -> tuple[int, int] | None:
    whole = next((shapes[name] for name in ("diff", "w_norm") if shapes.get(name)), None)
    return (whole[0], prod(whole[1:])) if whole else None


# Whole differences from the model's weights and biases; `w_norm` and `b_norm` are LyCORIS' names for norm layers.
_DIFFERENCE = AdapterType(
    "full difference",
    frozenset({"diff", "diff_b", "set_weight", "w_norm", "b_norm"}),
    size=_size_of_difference,
    acts=lambda shapes: shapes.keys() <= DIFFERENCES,
    scaled=("diff", "w_norm"),
    row_factors=frozenset({"diff", "diff_b"}),
    change="modules.adapters.changes:difference",
    algo="full",
    rows=lambda shapes, alpha: ("norm" if shapes.keys() & {"w_norm", "b_norm"} else "difference",),
    programs={
        "norm": {**plain_lora_only("norm"), "LyCORIS": UNKNOWN},
        "difference": {**plain_lora_only("difference"), "LyCORIS": UNKNOWN},
    },
)


@cache
def adapter_types() -> tuple[AdapterType, ...]:
    """Return all types; a file with layers of several types is named after the first one.

    Plain LoRA, the default adapter, comes after the others: LyCORIS' networks have it on some of their layers.
    """
    default, *others = (spec.files for spec in load_factory(_ADAPTERS).values())
    return (*others, _GLORA, _IA3, default, _DIFFERENCE)


def _default_type() -> AdapterType:
    return adapter_types()[-2]


@cache
def all_factors() -> frozenset[str]:
    """Return the names of all tensors that a layer of an adapter file can have."""
    types = adapter_types()
    return frozenset({ALPHA, DORA_SCALE}).union(*(t.factors for t in types), *(t.markers for t in types))


def no_factors() -> frozenset[str]:
    """Return the names of tensors that are read together with the factors of a layer, but are not factors."""
    return frozenset({ALPHA}).union(*(t.markers for t in adapter_types()))


def adapter_type(factors: Iterable[str]) -> AdapterType | None:
    """Return the type of an adapter, or of one layer, with these factors; None for an unknown type."""
    names = frozenset(factors)
    return next((t for t in adapter_types() if names & (t.factors | t.markers)), None)


def type_of(factors: Iterable[str]) -> str:
    """Return the label of the type of an adapter with these factors; empty for an unknown type."""
    names = frozenset(factors)
    if known := adapter_type(names):
        return known.label
    return _default_type().label if DORA_SCALE in names else ""


def missing_factor(factors: Iterable[str]) -> str:
    """Return the name of a factor that a layer with these factors lacks; empty if its change is complete.

    Unknown types count as complete.
    """
    names = frozenset(factors) - {ALPHA}
    if names == {DORA_SCALE}:
        return next(_default_type().missing_factors(names))
    return next((name for t in adapter_types() if names & t.factors for name in t.missing_factors(names)), "")


def depends_on_weight(factors: Iterable[str]) -> bool:
    """Return whether the change by these factors depends on the weight that it changes, as with DoRA and rotations."""
    names = frozenset(factors)
    kind = adapter_type(names)
    return DORA_SCALE in names or (kind is not None and kind.depends_on_weight)


def can_act(shapes: Shapes) -> bool:
    """Return whether the change of a layer with factors of these shapes is known here."""
    names = frozenset(shapes) - BIASES
    if not names:
        return bool(shapes)
    known = adapter_type(names)
    if known is None or missing_factor(names) or (DORA_SCALE in names and not known.takes_dora):
        return False
    return known.acts({name: shape for name, shape in shapes.items() if name not in BIASES and name != DORA_SCALE})
