"""NF4, 4-bit NormalFloat (Dettmers et al. 2023, "QLoRA", section 3): 16 values, the quantiles of a normal distribution,
and a scale for every 64 weights.
"""

from __future__ import annotations

import math

from modules.quantization.spec import FLOAT32_BYTES, QuantizedFormat, Shape

BLOCK_WEIGHTS = 64


def _stored_bytes(shape: Shape) -> int:
    num_blocks = math.ceil(math.prod(shape) / BLOCK_WEIGHTS)
    return num_blocks * (BLOCK_WEIGHTS // 2 + FLOAT32_BYTES)


NFLOAT4 = QuantizedFormat(
    name="nfloat4",
    label="nfloat4",
    help="4-bit NormalFloat (QLoRA) with a scale for every 64 weights.",
    packing="modules.quantization.packing:NF4_BLOCKS",
    stored_bytes=_stored_bytes,
    working_bytes=6,
    devices=frozenset({"cpu", "cuda", "mps"}),
    backends="all devices; faster on CUDA with bitsandbytes",
)
