"""The rules of quantized weights."""

from __future__ import annotations

import pytest

from modules.config.codec import decode
from modules.config.rules.training import residual_without_effect


@pytest.mark.parametrize(("dtype", "svd_dtype", "is_said"), [
    ("gguf", "bfloat16", True), ("gguf_a8_int", "float32", True), ("gguf", "none", False), ("int8", "bfloat16", False),
])  # fmt: skip
def test_a_part_from_a_gguf_file_gets_no_residual(dtype: str, svd_dtype: str, is_said: bool) -> None:
    config = decode({"parts": {"unet": {"dtype": dtype}}, "quantization": {"svd_dtype": svd_dtype}}).config
    problems = list(residual_without_effect(config))
    assert [(p.path, p.severity) for p in problems] == ([("quantization.svd_dtype", "info")] if is_said else [])
