"""LoHa: its settings and its record. Its layers are in `loha_layers`.

LoHa (Hyeon-Woo et al. 2022, "FedPara", arXiv 2108.06098, proposition 1) adds the elementwise (Hadamard) product of two
low-rank products to a weight: `W + alpha / rank * (w1_a @ w1_b) * (w2_a @ w2_b)`. Its rank can be as high as the square
of `rank`, with twice the weights of a LoRA.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from modules.adapters.settings import network_args
from modules.adapters.spec import AdapterMemory, AdapterSpec, NetworkMetadata, OneTrainerNames, Shape
from modules.adapters.training_settings import UNIFORM_RANKS, RankedSettings
from modules.formats.adapter_types import DORA_SCALE, AdapterType, Product, Shapes, missing_factor, product_size
from modules.formats.program_table import UNKNOWN, none, plain_lora_only
from modules.settings.field import advanced_setting

if TYPE_CHECKING:
    from modules.memory.arrays import Array
    from modules.memory.replay import Replay

FACTORS = frozenset(f"hada_{name}" for name in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2"))


class Loha(RankedSettings):
    """Adds two low-rank products, multiplied by element (Hyeon-Woo et al. 2022): a higher rank for its size."""

    name: Literal["loha"] = "loha"
    use_tucker: Annotated[
        bool, advanced_setting("Tucker decomposition", "Also decomposes convolution kernels larger than 1x1.")
    ] = False


def factor_shapes(settings: Loha, weight: Shape) -> dict[str, Shape]:
    """Return the shapes of LoHa's factors for a weight of (out, in, kernel), by their names in LyCORIS files.

    `settings` have the layer's rank (`at_layer`).
    """
    out_channels, in_channels, *kernel = weight
    rank = settings.rank
    if settings.use_tucker and math.prod(kernel) > 1:
        sides: dict[str, Shape] = {"t{}": (rank, rank, *kernel), "w{}_a": (rank, out_channels)}
        sides["w{}_b"] = (rank, in_channels)
    else:
        sides = {"w{}_a": (out_channels, rank), "w{}_b": (rank, in_channels * math.prod(kernel))}
    return {f"hada_{side.format(n)}": shape for n in (1, 2) for side, shape in sides.items()}


def walk(settings: Loha, walk: Replay, path: str, weight: Shape, x: Array, out: Array) -> Array:
    """Run LoHa on the estimate's tape: each pass computes the product, as large as the weight."""
    shapes = factor_shapes(settings, weight)
    return walk.adapter_product(f"{path}.loha", x, shapes, channels=weight[0], out=out, composed=math.prod(weight))


def network(settings: Loha) -> NetworkMetadata:
    """Return kohya's metadata of a LoHa."""
    args = {"algo": "loha", "use_tucker": str(settings.use_tucker), "dropout": f"{settings.dropout:g}"}
    return NetworkMetadata("lycoris.kohya", settings.rank, settings.alpha, args | network_args(settings))


def trainable(factors: Collection[str]) -> frozenset[str]:
    """Return the factors of a layer in a file that are trained: a LoHa's, unless the layer has DoRA's magnitudes."""
    held = frozenset(factors) & FACTORS
    return held if held and not missing_factor(held) and DORA_SCALE not in factors else frozenset()


def settings_as(settings: Loha, shapes: Mapping[str, Shape]) -> Loha:
    """Return the settings that give a layer the factors that it has in a file, from their shapes."""
    form = {"rank": shapes["hada_w1_b"][0], "use_tucker": "hada_t1" in shapes}
    return settings.model_copy(update={**UNIFORM_RANKS, **form})


def missing_factors(names: frozenset[str]) -> Iterator[str]:
    """Yield the factors that a layer in a file lacks."""
    cores = ("hada_t1", "hada_t2") if names & {"hada_t1", "hada_t2"} else ()
    needed = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", *cores)
    yield from (name for name in needed if name not in names)


def _size(shapes: Shapes) -> tuple[int, int] | None:
    if not {"hada_w1_a", "hada_w1_b"} & shapes.keys():
        return None
    first, last = (shapes.get(f"hada_w1_{side}", ()) for side in "ab")
    return product_size(first, last, is_tucker="hada_t1" in shapes)


def _rows(shapes: Shapes, alpha: float | None) -> Iterator[str]:
    yield "LoHa"
    if any(len(shapes.get(f"hada_w1_{side}", ())) > 2 for side in "ab"):
        yield "LoHa with four axes"


_FILES = AdapterType(
    "LoHa",
    FACTORS,
    missing_factors=missing_factors,
    products=tuple(Product(f"hada_w{n}_a", f"hada_w{n}_b", core=f"hada_t{n}", core_axis=0) for n in (1, 2)),
    size=_size,
    acts=lambda shapes: shapes.keys() <= FACTORS,
    change="modules.adapters.loha_layers:product",
    scaled=("hada_w1_a",),
    takes_dora=True,
    read="modules.adapters.delta_adapter:with_matrices",
    peft_alpha="alpha",
    row_factors=frozenset({"hada_w1_a", "hada_w2_a"}),
    algo="loha",
    rows=_rows,
    programs={
        "LoHa": plain_lora_only("LoHa"),
        "LoHa with four axes": {  # as OneTrainer writes it
            "ComfyUI": none("skips LoHa factors with four axes"),
            "Forge": UNKNOWN,
            "LyCORIS": UNKNOWN,
        },
    },
)
LOHA = AdapterSpec(
    "LoHa",
    Loha,
    files=_FILES,
    kohya=("loha",),
    onetrainer=OneTrainerNames("LOHA", {"lora_rank": "rank"}),
    factory="modules.adapters.loha_layers:LOHA_KIND",
    memory=AdapterMemory(factor_shapes, walk),
    supports_dora=True,
    network=network,
    trainable=trainable,
    settings_as=settings_as,
)
