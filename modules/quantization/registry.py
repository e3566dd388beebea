"""All formats of quantized weights, by name. Torch-free."""

from __future__ import annotations

from modules.quantization.formats.float8 import FLOAT8
from modules.quantization.formats.float8_w8a8 import FLOAT8_W8A8
from modules.quantization.formats.gguf import GGUF, GGUF_A8_FLOAT, GGUF_A8_INT
from modules.quantization.formats.int8 import INT8
from modules.quantization.formats.int8_w8a8 import INT8_W8A8
from modules.quantization.formats.nfloat4 import NFLOAT4
from modules.quantization.spec import QuantizedFormat

COMPUTED: dict[str, QuantizedFormat] = {f.name: f for f in (FLOAT8, INT8, NFLOAT4, FLOAT8_W8A8, INT8_W8A8)}
"""The formats that the weights of any model are packed in."""

FORMATS: dict[str, QuantizedFormat] = COMPUTED | {f.name: f for f in (GGUF, GGUF_A8_FLOAT, GGUF_A8_INT)}
"""These, and those whose weights a file has packed."""
