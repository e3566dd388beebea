"""LoKr: its settings and its record. Its layers are in `lokr_layers`.

LoKr (Yeh et al. 2023, arXiv 2309.14859, section 3; Edalati et al. 2022, "KronA") adds the Kronecker product of two
small matrices to a weight: `W + scale * kron(w1, w2)`, with w1 of (a, b) and w2 of (out / a, in / b, kernel).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Interval

from modules.adapters.ranks import factorization
from modules.adapters.settings import network_args
from modules.adapters.spec import AdapterMemory, AdapterSpec, NetworkMetadata, OneTrainerNames, Shape
from modules.adapters.training_settings import UNIFORM_RANKS, RankedSettings
from modules.formats.adapter_types import DORA_SCALE, AdapterType, Product, Shapes, product_size
from modules.formats.program_table import Answer, none, plain_lora_only, refuses
from modules.settings.field import Setting, advanced_setting

if TYPE_CHECKING:
    from modules.memory.arrays import Array
    from modules.memory.replay import Replay

# Without "lokr_t1", which no program writes.
FACTORS = frozenset({"lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"})


class Lokr(RankedSettings):
    """Adds a Kronecker product of small matrices (Yeh et al. 2024): very small files, or a high rank."""

    name: Literal["lokr"] = "lokr"
    factor: Annotated[
        int,
        *Interval(ge=-1, le=1024),
        Setting(
            "Factor",
            "The size of the first, small matrix: the smaller it is, the larger the file. -1 makes both matrices as "
            "equal in size as the layer allows, which gives the smallest file.",
        ),
    ] = -1
    decompose_both: Annotated[
        bool,
        advanced_setting(
            "Decompose both", "Also factorizes the first matrix into a low-rank product if the rank is small enough."
        ),
    ] = False
    use_tucker: Annotated[
        bool,
        advanced_setting(
            "Tucker decomposition",
            "Also decomposes convolution kernels larger than 1x1. The file has these factors multiplied out, as "
            "ComfyUI and Forge need them.",
        ),
    ] = False
    full_matrix: Annotated[
        bool,
        advanced_setting("Full matrix", "Trains both matrices in full, whatever the rank. Alpha then has no effect."),
    ] = False
    vec_trick: Annotated[
        bool,
        advanced_setting(
            "Vec trick",
            "Multiplies by the two matrices one after the other and never builds their product. Uses less memory; the "
            "result is the same but for rounding.",
        ),
    ] = True


def factor_shapes(settings: Lokr, weight: Shape) -> dict[str, Shape]:
    """Return the shapes of LoKr's factors for a weight of (out, in, kernel), by their names in LyCORIS files.

    A matrix is a low-rank product, "_a" times "_b", if the rank is below half of its longer side.
    """
    out_channels, in_channels, *kernel = weight
    (rows_1, rows_2), (columns_1, columns_2) = (factorization(n, settings.factor) for n in (out_channels, in_channels))
    rank = settings.rank
    if settings.decompose_both and not settings.full_matrix and rank < max(rows_1, columns_1) / 2:
        shapes: dict[str, Shape] = {"lokr_w1_a": (rows_1, rank), "lokr_w1_b": (rank, columns_1)}
    else:
        shapes = {"lokr_w1": (rows_1, columns_1)}
    if settings.full_matrix or rank >= max(rows_2, columns_2) / 2:
        return shapes | {"lokr_w2": (rows_2, columns_2, *kernel)}
    if settings.use_tucker and math.prod(kernel) > 1:
        return shapes | {"lokr_t2": (rank, rank, *kernel), "lokr_w2_a": (rank, rows_2), "lokr_w2_b": (rank, columns_2)}
    return shapes | {"lokr_w2_a": (rows_2, rank), "lokr_w2_b": (rank, columns_2 * math.prod(kernel))}


def walk(settings: Lokr, walk: Replay, path: str, weight: Shape, x: Array, out: Array) -> Array:
    """Run LoKr on the estimate's tape: w2 on each block of the inputs, then w1 across the blocks, or their product."""
    out_channels, in_channels, *kernel = weight
    shapes = factor_shapes(settings, weight)
    if not settings.vec_trick:
        return walk.adapter_product(
            f"{path}.lokr", x, shapes, channels=out_channels, out=out, composed=math.prod(weight)
        )
    (rows_1, rows_2), (columns_1, columns_2) = (factorization(n, settings.factor) for n in (out_channels, in_channels))
    first = {name: shape for name, shape in shapes.items() if "w1" in name}
    second = {name: shape for name, shape in shapes.items() if "w1" not in name}
    # w1 is computed as well, because it is multiplied by the scale; so few numbers hardly count.
    num_second = 0 if "lokr_w2" in second else rows_2 * columns_2 * math.prod(kernel)
    middle = walk.adapter_product(f"{path}.w2", x, second, channels=columns_1 * rows_2, out=out, composed=num_second)
    return walk.adapter_product(
        f"{path}.w1", middle, first, channels=out_channels, out=out, composed=rows_1 * columns_1
    )


def network(settings: Lokr) -> NetworkMetadata:
    """Return kohya's metadata of a LoKr."""
    args = {
        "algo": "lokr",
        "factor": str(settings.factor),
        "decompose_both": str(settings.decompose_both),
        "full_matrix": str(settings.full_matrix),
        "use_tucker": str(settings.use_tucker),
        "dropout": f"{settings.dropout:g}",
        **network_args(settings),
    }
    return NetworkMetadata("lycoris.kohya", settings.rank, settings.alpha, args)


def trainable(names: Collection[str]) -> frozenset[str]:
    """Return the factors of a layer in a file that are trained: a LoKr's, unless the layer has DoRA's magnitudes."""
    held = frozenset(names) & FACTORS
    is_whole = all(f"lokr_w{n}" in held or {f"lokr_w{n}_a", f"lokr_w{n}_b"} <= held for n in (1, 2))
    return held if is_whole and not {DORA_SCALE, "lokr_t1"} & frozenset(names) else frozenset()


def settings_as(settings: Lokr, shapes: Mapping[str, Shape]) -> Lokr:
    """Return the settings that give a layer the factors that it has in a file, from their shapes."""
    rank = next((shapes[name][0] for name in ("lokr_w1_b", "lokr_w2_b") if name in shapes), settings.rank)
    first = shapes.get("lokr_w1") or (shapes["lokr_w1_a"][0], shapes["lokr_w1_b"][1])
    forms = {
        "decompose_both": "lokr_w1_a" in shapes,
        "full_matrix": "lokr_w2" in shapes and "lokr_w1" in shapes,
        "use_tucker": "lokr_t2" in shapes,
    }
    return settings.model_copy(update={**UNIFORM_RANKS, "rank": rank, "factor": max(first), **forms})


def missing_factors(names: frozenset[str]) -> Iterator[str]:
    """Yield the factors that a layer in a file lacks: of each matrix the whole, or both halves."""
    for side in ("lokr_w1", "lokr_w2"):
        halves = [f"{side}_a", f"{side}_b"]
        if side not in names and (missing := [name for name in halves if name not in names]):
            yield side if missing == halves else missing[0]


def _size(shapes: Shapes) -> tuple[int, int] | None:
    sides = []
    for side in ("lokr_w1", "lokr_w2"):
        whole, a, b = (shapes.get(f"{side}{end}", ()) for end in ("", "_a", "_b"))
        if len(whole) > 1:
            sides.append((whole[0], math.prod(whole[1:])))
        elif len(a) > 1 and len(b) > 1:
            sides.append(product_size(a, b, is_tucker=side == "lokr_w2" and "lokr_t2" in shapes))
        else:
            return None
    return sides[0][0] * sides[1][0], sides[0][1] * sides[1][1]


_FAILS_ON_TUCKER = refuses("raises an error for Tucker factors of LoKr")
_FILES = AdapterType(
    "LoKr",
    FACTORS | {"lokr_t1"},
    missing_factors=missing_factors,
    products=(
        Product("lokr_w1_a", "lokr_w1_b"),
        Product("lokr_w2_a", "lokr_w2_b", core="lokr_t2", core_axis=0),
    ),
    size=_size,
    acts=lambda shapes: shapes.keys() <= FACTORS,
    change="modules.adapters.lokr_layers:product",
    scaled=("lokr_w1", "lokr_w1_a"),
    takes_dora=True,
    # ai-toolkit writes the rank 9,999,999,999 as the alpha of two whole matrices, infinite in float16.
    has_scale=lambda shapes: not {"lokr_w1", "lokr_w2"} <= shapes.keys(),
    read="modules.adapters.lokr_layers:as_in_lycoris",
    peft_alpha="alpha",
    algo="lokr",
    rows=lambda shapes, alpha: ("LoKr", "LoKr with Tucker") if "lokr_t2" in shapes else ("LoKr",),
    programs={
        "LoKr": {
            **plain_lora_only("LoKr"),
            "LyCORIS": Answer("unknown", "raises an error for some low ranks on kernels above 1x1"),
        },
        "LoKr with Tucker": {
            "ComfyUI": none("skips Tucker factors of LoKr"),
            "Forge": _FAILS_ON_TUCKER,
            "LyCORIS": _FAILS_ON_TUCKER,
        },
    },
)
LOKR = AdapterSpec(
    "LoKr",
    Lokr,
    files=_FILES,
    kohya=("lokr",),
    onetrainer=OneTrainerNames(
        "LOKR",
        {
            "lokr_dim": "rank",
            "lokr_decompose_factor": "factor",
            "lokr_decompose_both": "decompose_both",
            "lokr_use_tucker": "use_tucker",
            "lokr_full_matrix": "full_matrix",
            "lokr_weight_decompose": "decompose",
            "lokr_dora_on_output": "decompose_output_axis",
            "lokr_vec_trick": "vec_trick",
        },
        dora_on_outputs=True,
    ),
    factory="modules.adapters.lokr_layers:LOKR_KIND",
    memory=AdapterMemory(factor_shapes, walk),
    supports_dora=True,
    network=network,
    trainable=trainable,
    settings_as=settings_as,
)
