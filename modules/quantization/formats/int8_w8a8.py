"""int8 weights and inputs: the product is one of integers (Dettmers et al. 2022, "LLM.int8()", section 2.1, without
its decomposition of outliers). Each token of the input has a scale of its own.
"""

from __future__ import annotations

from modules.quantization.formats.int8 import row_bytes
from modules.quantization.spec import QuantizedFormat

INT8_W8A8 = QuantizedFormat(
    name="int8_w8a8",
    label="int8, computed in int8",
    help="int8 weights, and inputs rounded to int8, so that the product is one of integers.",
    packing="modules.quantization.packing:INT8_ROWS",
    stored_bytes=row_bytes,
    working_bytes=4,
    devices=frozenset({"cpu", "cuda", "mps"}),
    backends="in int8 on CUDA (compute capability 7.5) and CPU; elsewhere the same rounding, computed in 16 or 32 bits",
    rounds_inputs="int8",
)
