"""LoRA: its settings and its record (Hu et al. 2021). Its layers are in `lora_layers`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Interval

from modules.adapters.settings import network_args
from modules.adapters.spec import AdapterMemory, AdapterSpec, NetworkMetadata, OneTrainerNames, Shape
from modules.adapters.training_settings import UNIFORM_RANKS, RankedSettings
from modules.formats.adapter_names import DOWN, MID, UP
from modules.formats.adapter_types import DORA_SCALE, AdapterType, Product, Shapes, product_size
from modules.formats.program_table import plain_lora_only
from modules.settings.field import advanced_setting

if TYPE_CHECKING:
    from modules.memory.arrays import Array
    from modules.memory.replay import Replay


class Lora(RankedSettings):
    """Adds a product of two small matrices to each layer (Hu et al. 2021): the usual choice."""

    name: Literal["lora"] = "lora"
    init: Annotated[
        Literal["zero", "pissa"],
        advanced_setting(
            "Initialization",
            "Zero: the product begins as zero (Hu et al. 2021). PiSSA: it begins as the principal part of each weight "
            "(Meng et al. 2024), whose singular values are computed before the run; the file then has twice the rank.",
            choice_labels={"zero": "Zero", "pissa": "PiSSA"},
        ),
    ] = "zero"
    lora_plus_ratio: Annotated[
        float,
        *Interval(gt=0, le=1024),
        advanced_setting(
            "LoRA+ ratio",
            "The learning rate of the matrix that begins as zero (B, or up), divided by the rate of the others (Hayou "
            "et al. 2024, who suggest 16). 1 trains all with the same rate.",
        ),
    ] = 1.0
    max_norm: Annotated[
        float | None,
        *Interval(gt=0, le=1000),
        advanced_setting(
            "Max norm",
            "After each step, layers whose change of the model (B A, times alpha by rank) has a larger norm are scaled "
            "down to it: kohya's scale_weight_norms, usually 1. It prevents overfitting, and several LoRAs combine "
            "better.",
            group="Regularization",
            empty_means="no limit",
        ),
    ] = None


def factor_shapes(settings: Lora, weight: Shape) -> dict[str, Shape]:
    """Return the shapes of A (rank, in, kernel) and B (out, rank, 1) for a weight of (out, in, kernel)."""
    out_channels, in_channels, *kernel = weight
    return {
        "lora_A.weight": (settings.rank, in_channels, *kernel),
        "lora_B.weight": (out_channels, settings.rank, *(1 for _ in kernel)),
    }


def fixed_shapes(settings: Lora, weight: Shape) -> dict[str, Shape]:
    """Return the shapes of the first product of PiSSA, which stays."""
    shapes = factor_shapes(settings, weight) if settings.init == "pissa" else {}
    return {f"initial.{name}": shape for name, shape in shapes.items()}


def walk(settings: Lora, walk: Replay, path: str, weight: Shape, x: Array, out: Array) -> Array:
    """Run a LoRA on the estimate's tape: A, then B."""
    down, up = factor_shapes(settings, weight).values()
    if settings.init == "pissa" and walk.plan.adapter is not None:
        x = walk.to(x, walk.plan.adapter.item_bytes)  # for two products
    low = walk.adapter_product(f"{path}.lora_A", x, {"A": down}, channels=settings.rank, out=out)
    high = walk.adapter_product(f"{path}.lora_B", low, {"B": up}, channels=weight[0], out=out)
    if settings.init != "pissa":
        return high
    del low
    first = walk.frozen_product(f"{path}.initial.down", x, down, channels=settings.rank, out=out)
    return walk.add(high, walk.frozen_product(f"{path}.initial.up", first, up, channels=weight[0], out=out))


def computes_in_input_dtype(settings: Lora) -> bool:
    """Return whether a LoRA with these settings needs no autocast: the plain product (`lora_fused`)."""
    return settings.init == "zero" and not (settings.decompose or settings.rank_dropout or settings.module_dropout)


def network(settings: Lora) -> NetworkMetadata:
    """Return kohya's metadata of a LoRA."""
    args = network_args(settings)
    if settings.init == "pissa":
        args["init"] = "pissa"
    if not settings.decompose:
        return NetworkMetadata("networks.lora", settings.rank, settings.alpha, args)
    return NetworkMetadata("lycoris.kohya", settings.rank, settings.alpha, {"algo": "locon", **args})


def trainable(names: Collection[str]) -> frozenset[str]:
    """Return the factors of a layer in a file that are trained: a LoRA's, unless the layer has DoRA's magnitudes."""
    own_factors = frozenset(names) & {DOWN, UP, MID}
    return own_factors if {DOWN, UP} <= own_factors and DORA_SCALE not in names else frozenset()


def settings_as(settings: Lora, shapes: Mapping[str, Shape]) -> Lora:
    """Return the settings with the rank that a layer has in a file, from the shapes of its factors."""
    return settings.model_copy(update={**UNIFORM_RANKS, "rank": shapes[DOWN][0], "init": "zero"})


def missing_factors(names: frozenset[str]) -> Iterator[str]:
    """Yield which of the two matrices a layer in a file lacks."""
    yield from (name for name in (DOWN, UP) if name not in names)


def _size(shapes: Shapes) -> tuple[int, int] | None:
    if DOWN not in shapes and UP not in shapes:
        return None
    return product_size(shapes.get(UP, ()), shapes.get(DOWN, ()))


_FILES = AdapterType(
    "LoRA",
    frozenset({DOWN, UP, MID}),
    missing_factors=missing_factors,
    products=(Product(UP, DOWN, core=MID),),
    size=_size,
    acts=lambda shapes: shapes.keys() <= {DOWN, UP, MID},
    change="modules.adapters.changes:product_of_lora",
    scaled=(UP,),
    takes_dora=True,
    peft_alpha="lora_alpha",
    row_factors=frozenset({UP}),
    algo="locon",
    rows=lambda shapes, alpha: ("Tucker LoRA" if MID in shapes else "LoRA",),
    programs={"LoRA": {}, "Tucker LoRA": plain_lora_only("Tucker LoRA")},
)
LORA = AdapterSpec(
    "LoRA",
    Lora,
    files=_FILES,
    kohya=("locon",),
    onetrainer=OneTrainerNames(
        "LORA",
        {
            "lora_rank": "rank",
            "lora_decompose": "decompose",
            "lora_decompose_norm_epsilon": "decompose_norm_eps",
            "lora_decompose_output_axis": "decompose_output_axis",
        },
        dora_on_outputs=False,
    ),
    factory="modules.adapters.lora_layers:LORA_KIND",
    computes_in_input_dtype=computes_in_input_dtype,
    forms=("kohya", "comfyui", "diffusers"),
    memory=AdapterMemory(factor_shapes, walk, fixed_shapes),
    supports_dora=True,
    raised=(".lora_B.",),
    network=network,
    trainable=trainable,
    settings_as=settings_as,
    float8_factors=frozenset({DOWN, UP, MID}),
)
