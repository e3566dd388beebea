"""OFT: its settings and its record. Its layers and formulas are in `oft_layers`.

OFT (Qiu et al. 2023, arXiv 2306.07280, section 3) multiplies a weight by an orthogonal matrix of blocks, which begins
as the identity: `R W`. Angles between the neurons stay what they are. COFT (section 3.2) keeps R close to the identity.
OFT v2 (Qiu et al. 2025, arXiv 2506.19847) rotates the inputs instead, `W R`, as peft and OneTrainer do. Files hold
one or the other, and neither can be turned into the other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Interval

from modules.adapters.ranks import factorization
from modules.adapters.settings import AdapterSection
from modules.adapters.spec import AdapterMemory, AdapterSpec, NetworkMetadata, OneTrainerNames, Shape
from modules.formats.adapter_types import AdapterType, Shapes
from modules.formats.program_table import UNKNOWN, Answers, none, plain_lora_only
from modules.settings.field import Setting, When, advanced_setting
from modules.settings.shared_types import Dropout, Fraction
from modules.system.problem import Problem, count

if TYPE_CHECKING:
    from modules.memory.arrays import Array
    from modules.memory.replay import Replay


OFT_BLOCKS, OFT_VECTORS, RESCALE = "oft_blocks", "oft_R.weight", "rescale"
OFT_SCALED = "oft_R.scaled_oft"
"""The tensor by which OneTrainer marks Scaled OFT: the vectors are to be divided."""
NO_LIMIT = 1024.0
"""The least alpha that limits nothing in any program: they differ in how they read it as a limit of the norm."""


class Oft(AdapterSection):
    """Rotates the outputs or inputs of each layer in blocks and keeps their norms (Qiu et al. 2023)."""

    name: Literal["oft"] = "oft"
    block_size: Annotated[
        int,
        *Interval(ge=2, le=4096),
        Setting(
            "Block size",
            "How many channels are rotated together; the file grows with it. A layer gets another size where programs "
            "need one: for outputs at most the square root of their number, for inputs the nearest divisor.",
        ),
    ] = 32
    rotates: Annotated[
        Literal["outputs", "inputs"],
        Setting(
            "Rotates",
            "The outputs of each layer, as LyCORIS (Diag-OFT): ComfyUI and A1111 load the file. Or its inputs, as "
            "OneTrainer (OFT v2), which is slower: only programs with support for OFT v2 load the file.",
            choice_labels={"outputs": "Outputs (Diag-OFT)", "inputs": "Inputs (OFT v2)"},
        ),
    ] = "outputs"
    constraint: Annotated[
        Fraction,
        advanced_setting(
            "COFT constraint",
            "Keeps the rotations small: the norm of the generator of a layer's rotations is at most this number times "
            "the number of its rotated channels, as in LyCORIS; for example 1e-3. 0 sets no limit.",
        ),
    ] = 0.0
    block_share: Annotated[bool, advanced_setting("Share blocks", "All blocks of a layer share one rotation.")] = False
    scaled: Annotated[
        bool,
        advanced_setting(
            "Scaled OFT",
            "Divides the trained values by the square root of their number per block, so that the same learning rate "
            "fits every block size. Choose a higher learning rate with it.",
        ),
    ] = False
    rescale: Annotated[
        bool,
        advanced_setting(
            "Rescale outputs", "Also trains a scale for each output.", applies_when=When("rotates", ("outputs",))
        ),
    ] = False
    dropout: Annotated[
        Dropout,
        advanced_setting("Dropout", "The probability that a block is not rotated in a step.", group="Regularization"),
    ] = 0.0


def block_size_of(settings: Oft, size: int) -> int:
    """Return the block size for so many channels: a divisor of their number.

    For outputs it is the size that LyCORIS uses, which is never larger than the number of blocks: it loads no others.
    For inputs it is the divisor nearest to the size in the settings, as in peft; the smaller of two. A block of one
    channel cannot rotate: instead of 1 it is the nearest other divisor, if there is one.
    """
    if settings.rotates == "outputs":
        usual = factorization(size, settings.block_size)[0]
        return usual if usual > 1 else _nearest(settings.block_size, size, up_to=math.isqrt(size))
    return _nearest(settings.block_size, size, up_to=size)


def _nearest(wanted: int, size: int, *, up_to: int) -> int:
    """Return the divisor of a size nearest to the wanted one, above 1 and at most `up_to`; 1 if there is no divisor."""
    divisors = (n for n in range(2, up_to + 1) if size % n == 0)
    return min(divisors, key=lambda n: (abs(n - wanted), n), default=1)


def problems(settings: Oft, weights: Collection[Shape]) -> Iterator[Problem]:
    """Yield the problems of the block sizes on layers with weights of these shapes."""
    if settings.rotates != "outputs":
        return
    sizes = sorted({weight[0] for weight in weights})
    sides = {n: block_size_of(settings, n) for n in sizes if factorization(n, settings.block_size)[0] == 1}
    if replaced := {size: side for size, side in sides.items() if side > 1}:
        named = ", ".join(f"layers with {size} outputs get blocks of {side}" for size, side in replaced.items())
        yield Problem(
            "adapter.block_size",
            f"A block size of {settings.block_size} would divide some layers into blocks of one channel, which cannot "
            f"rotate: {named}.",
            "info",
        )
    if unrotated := [size for size, side in sides.items() if side == 1]:
        named = ", ".join(count(size, "output") for size in unrotated)
        yield Problem(
            "adapter.layers",
            f"OFT cannot rotate the outputs of layers with {named}: no block size divides them.",
            advice="Choose other layers, or rotate the inputs.",
        )


def factor_shapes(settings: Oft, weight: Shape) -> dict[str, Shape]:
    """Return the shapes of OFT's factors for a weight of (out, in, kernel), by their names in files.

    For outputs, as in LyCORIS: square blocks B, which generate a rotation by `B - B^T`. For inputs, as in peft and
    OneTrainer: the values above the diagonal of the generator, a row for each block of in * kernel.
    """
    if settings.rotates == "outputs":
        side = block_size_of(settings, weight[0])
        blocks = {OFT_BLOCKS: (1 if settings.block_share else weight[0] // side, side, side)}
        return blocks | ({RESCALE: (weight[0], *(1 for _ in weight[1:]))} if settings.rescale else {})
    size = math.prod(weight[1:])
    side = block_size_of(settings, size)
    return {OFT_VECTORS: (1 if settings.block_share else size // side, side * (side - 1) // 2)}


def walk(settings: Oft, walk: Replay, path: str, weight: Shape, x: Array, out: Array) -> Array:
    """Run OFT on the estimate's tape: the rotation of the outputs, or of the inputs before the weight once more."""
    shapes = factor_shapes(settings, weight)
    size = weight[0] if settings.rotates == "outputs" else math.prod(weight[1:])
    # In float32 Cayley's transform keeps its result, and its series three powers and, in a pass in float32, the result.
    # A pass in 16 bits keeps the result in those too.
    num_kept = 1 if settings.rotates == "outputs" else 3 if walk.plan.compute_bytes else 4
    rotations = size * block_size_of(settings, size) * (2 * num_kept + 1 if walk.plan.compute_bytes else num_kept)
    if settings.rotates == "outputs":
        turned = walk.adapter_product(path, out, shapes, channels=weight[0], out=out, composed=rotations)
        return walk.product(turned, out) if settings.rescale else turned
    if math.prod(weight[2:]) > 1:
        return walk.adapter_product(path, x, shapes, channels=weight[0], out=out, composed=math.prod(weight))
    rotated = walk.adapter_product(path, x, shapes, channels=weight[1], out=x, composed=rotations)
    return walk.own_product(rotated, weight, out=out)


def network(settings: Oft) -> NetworkMetadata:
    """Return kohya's metadata of an OFT: LyCORIS takes the block size as its rank."""
    args = {
        "algo": "diag-oft",
        "block_size": str(settings.block_size),
        "constraint": f"{settings.constraint:g}",
        "rescaled": str(settings.rescale),
        "dropout": f"{settings.dropout:g}",
    }
    if settings.rotates == "inputs":
        args["algo"] = "oft_v2"
    return NetworkMetadata("lycoris.kohya", settings.block_size, settings.constraint, args)


def trainable(factors: Mapping[str, Shape]) -> frozenset[str]:
    """Return the factors of a layer in a file that are trained, of either form of OFT; BOFT's blocks have four axes."""
    if len(factors.get(OFT_BLOCKS, ())) == 3:
        return frozenset(factors) & {OFT_BLOCKS, RESCALE}
    return frozenset({OFT_VECTORS}) if len(factors.get(OFT_VECTORS, ())) == 2 else frozenset()


def settings_as(settings: Oft, shapes: Mapping[str, Shape]) -> Oft:
    """Return the settings that give a layer the factors that it has in a file, from their shapes."""
    if vectors := shapes.get(OFT_VECTORS):
        form = {"rotates": "inputs", "block_size": side_of_vectors(vectors[1]), "block_share": vectors[0] == 1}
    else:
        form = {"rotates": "outputs", "block_size": shapes[OFT_BLOCKS][1], "block_share": False}
    return settings.model_copy(update={**form, "rescale": RESCALE in shapes})


def side_of_vectors(num_values: int) -> int:
    """Return the block size of OFT v2 with so many values above the diagonal of each block."""
    return (1 + math.isqrt(1 + 8 * num_values)) // 2


def missing_factors(names: frozenset[str]) -> Iterator[str]:
    """Yield the factor that a layer in a file lacks: scales alone rotate nothing."""
    if names == {RESCALE}:
        yield OFT_BLOCKS


def _size(shapes: Shapes) -> tuple[int, int] | None:
    if len(blocks := shapes.get(OFT_BLOCKS, ())) == 3:
        return blocks[0] * blocks[1], 0
    if len(vectors := shapes.get(OFT_VECTORS, ())) == 2 and vectors[0] > 1:  # a single one may be shared by all blocks
        return 0, vectors[0] * side_of_vectors(vectors[1])
    return None


def _acts(shapes: Shapes) -> bool:
    """Return whether it is a supported rotation; the blocks of BOFT have four axes."""
    return shapes.keys() == {OFT_VECTORS} or (
        shapes.keys() <= {OFT_BLOCKS, RESCALE} and len(shapes.get(OFT_BLOCKS, ())) == 3
    )


def _rows(shapes: Shapes, alpha: float | None) -> Iterator[str]:
    if OFT_BLOCKS not in shapes:
        yield "diagonal OFT" if "oft_diag" in shapes else "OFT v2"
        return
    yield "BOFT" if len(shapes[OFT_BLOCKS]) == 4 else "OFT"
    if RESCALE in shapes:
        yield "rescaled OFT"
    if alpha is not None and 0 < alpha < NO_LIMIT:
        yield "constrained OFT"


_NO_OFT = none("does not support OFT")
_NOT_THIS_OFT = none("does not support this OFT")
_PROGRAMS: Mapping[str, Answers] = {
    "OFT": {**plain_lora_only("OFT"), "Forge": _NO_OFT},
    "rescaled OFT": {"ComfyUI": none("ignores the scales of the outputs")},
    # LyCORIS' limit of the rotations; files of this program have one that is never reached.
    "constrained OFT": {"ComfyUI": none("limits the rotations otherwise than LyCORIS")},
    "BOFT": {**plain_lora_only("BOFT"), "Forge": _NO_OFT, "LyCORIS": UNKNOWN},
    "diagonal OFT": {
        **plain_lora_only("diagonal OFT"),
        "ComfyUI": _NOT_THIS_OFT,
        "Forge": _NO_OFT,
        "LyCORIS": UNKNOWN,
    },
    "OFT v2": {
        **plain_lora_only("OFT v2"),
        "ComfyUI": _NOT_THIS_OFT,
        "A1111": _NOT_THIS_OFT,
        "Forge": _NO_OFT,
        "LyCORIS": _NOT_THIS_OFT,
    },
}
_FILES = AdapterType(
    "OFT",
    frozenset({OFT_BLOCKS, "oft_diag", OFT_VECTORS, RESCALE}),
    markers=frozenset({OFT_SCALED}),
    missing_factors=missing_factors,
    size=_size,
    acts=_acts,
    change="modules.adapters.oft_layers:oft_change",
    depends_on_weight=True,
    read="modules.adapters.oft_layers:as_in_lycoris",
    algo="diag-oft",
    rows=_rows,
    programs=_PROGRAMS,
)
OFT = AdapterSpec(
    "OFT",
    Oft,
    files=_FILES,
    kohya=("oft",),
    onetrainer=OneTrainerNames(
        "OFT_2",
        {"oft_block_size": "block_size", "oft_block_share": "block_share", "oft_scaled": "scaled"},
        fixed={"rotates": "inputs"},
        note="OFT rotates the inputs of layers, as in OneTrainer. Few programs load its files.",
        advice="Choose Outputs for a file that ComfyUI and A1111 load.",
    ),
    factory="modules.adapters.oft_layers:OFT_KIND",
    memory=AdapterMemory(factor_shapes, walk),
    network=network,
    trainable=trainable,
    settings_as=settings_as,
    problems=problems,
)
