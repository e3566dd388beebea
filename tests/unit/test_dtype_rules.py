"""Weight dtypes that do not match the precision are reported, with what to set instead."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from modules.config.rules import problems_of
from modules.config.rules.training import mixed_16_bit
from modules.config.schema import Config
from tests.builders.configs import small_config

MIXED = {("float16", "bfloat16"), ("bfloat16", "float16")}


def config_with(tmp_path: Path, dtype: str, precision: str, part: str = "unet") -> Config:
    config = small_config(tmp_path, model=tmp_path, images=tmp_path, training={"precision": precision})
    return config.model_copy(update={"parts": {part: config.part(part).model_copy(update={"dtype": dtype})}})


@pytest.mark.parametrize("part", ["unet", "text_encoder"])
def test_two_16_bit_formats_at_once_are_a_warning(tmp_path: Path, part: str) -> None:
    pairs = product(("float32", "bfloat16", "float16"), ("float32", "tfloat32", "bfloat16", "float16"))
    found = {pair: list(mixed_16_bit(config_with(tmp_path, *pair, part))) for pair in pairs}
    assert {pair for pair, problems in found.items() if problems} == MIXED
    [problem] = found["float16", "bfloat16"]
    assert (problem.path, problem.severity) == (f"parts.{part}.dtype", "warning")
    assert "float16" in problem.message
    assert problem.advice == "Set the weight dtype to bfloat16, or the precision to float16."


def test_the_rule_is_among_the_rules_and_no_pair_is_an_error(tmp_path: Path) -> None:
    config = config_with(tmp_path, "float16", "bfloat16")
    assert [p.path for p in problems_of(config) if p.severity == "warning"] == ["parts.unet.dtype"]
    assert [p for p in problems_of(config) if p.severity == "error"] == []


def test_the_vae_computes_in_its_own_dtype_always(tmp_path: Path) -> None:
    assert list(mixed_16_bit(config_with(tmp_path, "float16", "bfloat16", "vae"))) == []
