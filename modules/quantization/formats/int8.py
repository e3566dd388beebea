"""int8: each row of a weight, the weights of one output, has one scale (symmetric, without a zero point)."""

from __future__ import annotations

from modules.quantization.spec import FLOAT32_BYTES, QuantizedFormat, Shape


def row_bytes(shape: Shape) -> int:
    """Return the bytes of a weight with one byte per element and a float32 scale for each row."""
    return shape[0] * shape[1] + FLOAT32_BYTES * shape[0]


INT8 = QuantizedFormat(
    name="int8",
    label="int8",
    help="8-bit integers with a scale for each output.",
    packing="modules.quantization.packing:INT8_ROWS",
    stored_bytes=row_bytes,
    working_bytes=4,
    devices=frozenset({"cpu", "cuda", "mps"}),
    backends="all devices",
)
