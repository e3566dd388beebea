"""float8 (e4m3, Micikevicius et al. 2022): each row of a weight has a scale that uses the whole range of the format."""

from __future__ import annotations

from modules.quantization.formats.int8 import row_bytes
from modules.quantization.spec import QuantizedFormat

FLOAT8 = QuantizedFormat(
    name="float8",
    label="float8",
    help="8-bit floating point numbers (e4m3) with a scale for each output.",
    packing="modules.quantization.packing:FLOAT8_ROWS",
    stored_bytes=row_bytes,
    working_bytes=4,
    devices=frozenset({"cpu", "cuda"}),
    backends="CUDA, CPU",
)
