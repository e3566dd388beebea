"""float8 (e4m3) weights and inputs; each token of the input has a scale of its own."""

from __future__ import annotations

from modules.quantization.formats.int8 import row_bytes
from modules.quantization.spec import QuantizedFormat

FLOAT8_W8A8 = QuantizedFormat(
    name="float8_w8a8",
    label="float8, computed in float8",
    help="float8 weights, and inputs rounded to float8, so that the product is computed in float8.",
    packing="modules.quantization.packing:FLOAT8_ROWS",
    stored_bytes=row_bytes,
    working_bytes=4,
    devices=frozenset({"cpu", "cuda"}),
    backends="in float8 on CUDA (compute capability 8.9); "
    "on a CPU and older GPUs the same rounding, computed in 16 or 32 bits",
    rounds_inputs="float8",
)
