"""The blocks of a GGUF file (github.com/ggml-org/ggml), such as Q4_K or Q8_0: they are used as they are stored."""

from __future__ import annotations

from modules.quantization.spec import QuantizedFormat, Shape


def _stored_bytes(shape: Shape) -> int:
    raise ValueError("the bytes of a weight in a GGUF file are in its header")


GGUF = QuantizedFormat(
    name="gguf",
    label="GGUF",
    help="The UNet of a GGUF file, whose weights stay packed as they are in it.",
    packing="",
    stored_bytes=_stored_bytes,
    working_bytes=10,
    devices=frozenset({"cpu", "cuda", "mps"}),
    backends="all devices",
    is_stored=True,
)
GGUF_A8_FLOAT = QuantizedFormat(
    name="gguf_a8_float",
    label="GGUF, computed in float8",
    help="The UNet of a GGUF file; weights and inputs are rounded to float8 at each use, so that the product is "
    "computed in float8.",
    packing="",
    stored_bytes=_stored_bytes,
    working_bytes=10,
    devices=frozenset({"cpu", "cuda"}),
    backends="in float8 on CUDA (compute capability 8.9); "
    "on a CPU and older GPUs the same rounding, computed in 16 or 32 bits",
    rounds_inputs="float8",
    is_stored=True,
)
GGUF_A8_INT = QuantizedFormat(
    name="gguf_a8_int",
    label="GGUF, computed in int8",
    help="The UNet of a GGUF file; weights and inputs are rounded to int8 at each use, so that the product is one of "
    "integers.",
    packing="",
    stored_bytes=_stored_bytes,
    working_bytes=10,
    devices=frozenset({"cpu", "cuda", "mps"}),
    backends="in int8 on CUDA (compute capability 7.5) and CPU; elsewhere the same rounding, computed in 16 or 32 bits",
    rounds_inputs="int8",
    is_stored=True,
)
