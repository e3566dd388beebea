"""The formats of quantized weights, a record each, and the format of a part of a model.

The memory estimate uses the same records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from modules.settings.layer_filter import LayerFilter

Shape = tuple[int, ...]
FLOAT32_BYTES = 4
Rounding = Literal["", "int8", "float8"]
PRODUCT_CAPABILITY: Mapping[Rounding, float] = MappingProxyType({"int8": 7.5, "float8": 8.9})
"""The compute capability from which an NVIDIA GPU has products in 8 bits."""


@dataclass(frozen=True, slots=True)
class Residual:
    """The low-rank product that is added to each quantized weight: its rank, and the dtype of its two matrices."""

    rank: int
    dtype: str

    def rank_of(self, shape: Shape) -> int:
        """Return the rank of the product of a weight of a shape: at most the weight's own rank."""
        return min(self.rank, *shape)

    def stored_bytes(self, shape: Shape) -> int:
        """Return the bytes of the product of a weight of a shape (out, in)."""
        return self.rank_of(shape) * sum(shape) * (FLOAT32_BYTES if self.dtype == "float32" else 2)


@dataclass(frozen=True, slots=True)
class LayerCost:
    """The cost of a frozen layer on a GPU in a step, forward and back: its kernels, and the MB moved besides products.

    Measured on 1024 tokens and 1280 x 1280 weights in bfloat16, on a GPU with products in the format; a test counts
    both.
    """

    kernels: int
    moved_mb: int

    @property
    def moved_bytes_per_weight(self) -> float:
        """Bytes moved for each weight in a pass, forward or back, with the packed weight itself."""
        return self.moved_mb * 1e6 / (1280 * 1280) / 2


PLAIN_COST = LayerCost(kernels=2, moved_mb=0)
"""The cost of a layer that is not quantized: a product forward, and one back."""


@dataclass(frozen=True, slots=True)
class QuantizedFormat:
    """A format of the weights of frozen linear layers.

    `packing` names the object that packs and unpacks a weight (`packing.Packing`), as "module:name". `stored_bytes`
    returns the bytes of a weight of a shape (out, in), with its scales. `rounds_inputs`: the inputs of a layer are
    rounded as well, and the products are computed in that format if the device can. `working_bytes` is the number of
    bytes per element that unpacking a weight to 16 bits needs at its peak on a GPU, with the result; 0 if that is all.
    `is_stored`: the weights are packed in the file of the model, so `packing` is empty, and their bytes are in the
    file's header, if they are kept as they are there: inputs rounded to 8 bits are multiplied with rows of 8 bits,
    which are made when the file is read. `cost` is None where it depends on the type of the stored weights.
    `takes_scaled_float8`: weights in float8 with scales, as files have them, are in the format already. `devices` are
    the kinds of devices it runs on, and `backends` describes how, for the documents.
    """

    name: str
    label: str
    help: str
    packing: str
    stored_bytes: Callable[[Shape], int]
    working_bytes: int
    devices: frozenset[str]
    backends: str
    rounds_inputs: Rounding = ""
    cost: LayerCost | None = None
    is_stored: bool = False
    takes_scaled_float8: bool = False

    @property
    def bytes_per_weight(self) -> float:
        """The stored bytes of a weight in a layer of usual size."""
        shape = (1280, 1280)
        return self.stored_bytes(shape) / math.prod(shape)

    def unpacking_bytes(self, item_bytes: int) -> int:
        """Return the peak of unpacking a weight to a dtype on a GPU, per element, with the result."""
        return max(self.working_bytes, item_bytes)


@dataclass(frozen=True, slots=True)
class ChosenFormat:
    """A format, and the filter of the linear layers whose weights have it.

    With a `residual` each weight has a low-rank product, too. For a format whose weights are packed in a file, `stored`
    are the bytes of each layer's weight there, by name; None while the file is not known. Layers with one of the steps
    in `never` in their dotted names are not quantized; an entry with "^" before it is a whole name.
    """

    format: QuantizedFormat
    layers: LayerFilter
    residual: Residual | None = None
    stored: Mapping[str, int] | None = field(default=None, hash=False)
    never: frozenset[str] = frozenset()

    @property
    def keeps_scaled_float8(self) -> bool:
        """Whether weights that a file has in float8 with scales stay as they are."""
        return self.format.takes_scaled_float8 and self.residual is None

    def takes(self, path: str) -> bool:
        """Return whether the linear layer with a dotted name is quantized."""
        is_there = self.stored is None or path in self.stored
        return is_there and self.layers.takes(path) and self.never.isdisjoint([*path.split("."), f"^{path}"])

    def stored_bytes(self, path: str, shape: Shape) -> int:
        """Return the bytes of the weight of shape (out, in) of the layer `path`, with its low-rank product."""
        is_kept = self.stored is not None and not self.format.rounds_inputs
        packed_bytes = self.stored[path] if self.stored is not None and is_kept else self.format.stored_bytes(shape)
        return packed_bytes + (self.residual.stored_bytes(shape) if self.residual is not None else 0)


# The formats, and all of them by name.


# int8: each row of a weight, the weights of one output, has one scale (symmetric, without a zero point).


def row_bytes(shape: Shape) -> int:
    """Return the bytes of a weight with one byte per element and a float32 scale for each row."""
    return shape[0] * shape[1] + FLOAT32_BYTES * shape[0]


INT8 = QuantizedFormat(
    name="int8",
    label="int8",
    help="8-bit integers with a scale for each output.",
    packing="modules.quantization.packing:INT8_ROWS",
    stored_bytes=row_bytes,
    working_bytes=0,
    devices=frozenset({"cpu", "cuda", "mps"}),
    backends="all devices",
    cost=LayerCost(kernels=4, moved_mb=10),
)


# float8 (e4m3, Micikevicius et al. 2022): each row of a weight has a scale that uses the whole range of the format.
FLOAT8 = QuantizedFormat(
    name="float8",
    label="float8",
    help="8-bit floating point numbers (e4m3) with a scale for each output.",
    packing="modules.quantization.packing:FLOAT8_ROWS",
    stored_bytes=row_bytes,
    working_bytes=0,
    devices=frozenset({"cpu", "cuda"}),
    backends="CUDA, CPU",
    cost=LayerCost(kernels=6, moved_mb=23),
    takes_scaled_float8=True,
)


# NF4, 4-bit NormalFloat (Dettmers et al. 2023, "QLoRA", section 3): 16 values, the quantiles of a normal distribution,
# and a scale for every 64 weights.
BLOCK_WEIGHTS = 64


def _nfloat4_bytes(shape: Shape) -> int:
    num_blocks = math.ceil(math.prod(shape) / BLOCK_WEIGHTS)
    return num_blocks * (BLOCK_WEIGHTS // 2 + FLOAT32_BYTES)


NFLOAT4 = QuantizedFormat(
    name="nfloat4",
    label="nfloat4",
    help="4-bit NormalFloat (QLoRA) with a scale for every 64 weights.",
    packing="modules.quantization.packing:NF4_BLOCKS",
    stored_bytes=_nfloat4_bytes,
    working_bytes=6,
    devices=frozenset({"cpu", "cuda", "mps"}),
    backends="all devices; faster on CUDA with bitsandbytes",
    cost=LayerCost(kernels=8, moved_mb=48),
)


# float8 (e4m3) weights and inputs; each token of the input has its own scale.
FLOAT8_W8A8 = QuantizedFormat(
    name="float8_w8a8",
    label="float8, computed in float8",
    help="float8 weights, and inputs rounded to float8, so that the product is computed in float8.",
    packing="modules.quantization.packing:FLOAT8_ROWS",
    stored_bytes=row_bytes,
    working_bytes=0,
    devices=frozenset({"cpu", "cuda"}),
    backends="in float8 on CUDA (compute capability 8.9); "
    "on a CPU and older GPUs the same rounding, computed in 16 or 32 bits",
    rounds_inputs="float8",
    cost=LayerCost(kernels=13, moved_mb=22),
    takes_scaled_float8=True,
)


# int8 weights and inputs: the product is one of integers (Dettmers et al. 2022, "LLM.int8()", section 2.1, without
# its decomposition of outliers). Each token of the input has its own scale.
INT8_W8A8 = QuantizedFormat(
    name="int8_w8a8",
    label="int8, computed in int8",
    help="int8 weights, and inputs rounded to int8, so that the product is computed in integers.",
    packing="modules.quantization.packing:INT8_ROWS",
    stored_bytes=row_bytes,
    working_bytes=0,
    devices=frozenset({"cpu", "cuda", "mps"}),
    backends="in int8 on CUDA (compute capability 7.5) and CPU; elsewhere the same rounding, computed in 16 or 32 bits",
    rounds_inputs="int8",
    cost=LayerCost(kernels=19, moved_mb=61),
)


# The blocks of a GGUF file (github.com/ggml-org/ggml), such as Q4_K or Q8_0: they are used as they are stored.


def _gguf_bytes(shape: Shape) -> int:
    raise ValueError("the bytes of a weight in a GGUF file are in its header")


GGUF = QuantizedFormat(
    name="gguf",
    label="GGUF",
    help="A part in a GGUF file, whose weights stay packed as they are in it.",
    packing="",
    stored_bytes=_gguf_bytes,
    working_bytes=10,
    devices=frozenset({"cpu", "cuda", "mps"}),
    backends="all devices",
    is_stored=True,
)
GGUF_A8_FLOAT = replace(
    FLOAT8_W8A8,
    name="gguf_a8_float",
    label="GGUF, computed in float8",
    help="A part in a GGUF file; weights are rounded to float8 when they are read, and inputs at each use, so that the "
    "product is computed in float8. A weight needs a byte, whatever the file has.",
    packing="",
    is_stored=True,
    takes_scaled_float8=False,
)
GGUF_A8_INT = replace(
    INT8_W8A8,
    name="gguf_a8_int",
    label="GGUF, computed in int8",
    help="A part in a GGUF file; weights are rounded to int8 when they are read, and inputs at each use, so that the "
    "product is computed in integers. A weight needs a byte, whatever the file has.",
    packing="",
    is_stored=True,
)


COMPUTED: dict[str, QuantizedFormat] = {f.name: f for f in (FLOAT8, INT8, NFLOAT4, FLOAT8_W8A8, INT8_W8A8)}
"""The formats that the weights of any model are packed in."""

FORMATS: dict[str, QuantizedFormat] = COMPUTED | {f.name: f for f in (GGUF, GGUF_A8_FLOAT, GGUF_A8_INT)}
"""All formats, also the ones whose weights are packed in a model's file."""


def weight_dtype_labels() -> Mapping[str, str]:
    """Return the names and labels of the dtypes, and of the quantized formats, of a part's weights."""
    plain = {name: name for name in ("float32", "bfloat16", "float16")}
    return plain | {quantized.name: quantized.label for quantized in FORMATS.values()}


def help_on_weight_dtypes() -> str:
    """Return the help of the weight dtype of a part, with the cost of each format on a GPU."""
    listed = "; ".join(
        f"{form.label} {form.bytes_per_weight:.2f} bytes, {form.cost.kernels} kernels"
        for form in COMPUTED.values()
        if form.cost is not None
    )
    return (
        "The dtype the weights are kept in. float32 is exact; 16 bits take half the memory. The others quantize "
        "the linear layers of a part whose own weights are not trained, such as the denoiser of a LoRA: a seventh "
        "to a quarter of the memory, at some cost in speed and precision. GGUF keeps the weights of a "
        "part's GGUF file as they are stored (docs/quantization.md). "
        f"Bytes a weight and kernels of a layer, in a step on a GPU: bfloat16 2 bytes, {PLAIN_COST.kernels} kernels; "
        f"{listed}. More kernels take longer unless the blocks are compiled."
    )
