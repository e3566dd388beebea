"""The rules of quantized weights."""

from __future__ import annotations

import pytest

from modules.config.codec import decode
from modules.config.rules.training import quantized_weights, residual_without_effect


@pytest.mark.parametrize(("dtype", "svd_dtype", "is_said"), [
    ("gguf", "bfloat16", True), ("gguf_a8_int", "float32", True), ("gguf", "none", False), ("int8", "bfloat16", False),
])  # fmt: skip
def test_a_part_from_a_gguf_file_gets_no_residual(dtype: str, svd_dtype: str, is_said: bool) -> None:
    config = decode({"parts": {"unet": {"dtype": dtype}}, "quantization": {"svd_dtype": svd_dtype}}).config
    problems = list(residual_without_effect(config))
    assert [(p.path, p.severity) for p in problems] == ([("quantization.svd_dtype", "info")] if is_said else [])


@pytest.mark.parametrize(
    ("family", "model_format", "is_refused"),
    [("z_image", "single_file", False), ("z_image", "diffusers", True), ("sd", "single_file", True)],
)
def test_a_fine_tune_may_quantize_what_its_result_does_not_contain(
    family: str, model_format: str, is_refused: bool
) -> None:
    """OneTrainer's presets for a fine-tune of Z-Image have a text encoder in float8."""
    tree = {
        "model": {"family": family},
        "training": {"trains": "full"},
        "parts": {"text_encoder": {"dtype": "float8", "train": False}},
        "output": {"model_format": model_format},
    }
    problems = list(quantized_weights(decode(tree).config))
    assert [p.path for p in problems] == (["parts.text_encoder.dtype"] if is_refused else [])
    assert all(("single file" in p.advice) is (family == "z_image") for p in problems)
