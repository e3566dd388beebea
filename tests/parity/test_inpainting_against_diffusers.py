"""Samples of inpainting models equal those of diffusers' inpainting pipelines, and are made of the same images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from modules.config.sections.evaluation import SamplePrompt
from tests.builders.models import write_inpainting_folder
from tests.builders.pipelines import (
    assert_same_image,
    load_tiny,
    sample_in_diffusers,
    sample_with_ours,
    stock_pipeline,
)

PROMPT = SamplePrompt(prompt="a disc", negative_prompt="a box", width_px=64, height_px=48, steps=3, guidance=3.0)


@pytest.fixture(params=["tiny_sd", "tiny_sd2", "tiny_sdxl"])
def inpainting_model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_inpainting_folder(tmp_path / "model", request.getfixturevalue(request.param))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A base image and a soft mask, neither of the sample's size."""
    base = Image.effect_noise((100, 80), 90).convert("RGB")
    ImageDraw.Draw(base).ellipse((10, 10, 70, 70), fill=(200, 40, 40))
    mask = Image.new("L", (50, 40))
    ImageDraw.Draw(mask).rectangle((10, 5, 33, 25), fill=255)
    base.save(tmp_path / "base.png")
    mask.save(tmp_path / "mask.png")
    return tmp_path / "base.png", tmp_path / "mask.png"


@pytest.mark.daily(1)
@pytest.mark.parametrize("sampler", ["ddim", "euler_a"])
def test_the_samples_are_those_of_diffusers(inpainting_model: Path, files: tuple[Path, Path], sampler: str) -> None:
    base, mask = files
    changes = {"inpainting": True, "base_image": str(base), "mask_image": str(mask), "sampler": sampler}
    prompt = PROMPT.model_copy(update=changes)
    family, pipe = load_tiny(inpainting_model), stock_pipeline(inpainting_model)
    assert family.variant == "inpainting"
    ours = sample_with_ours(family, prompt)
    with Image.open(base) as image, Image.open(mask) as hole:
        assert_same_image(ours, sample_in_diffusers(pipe, prompt, image=image, mask_image=hole, strength=1.0))
        other = sample_in_diffusers(pipe, prompt, image=image, mask_image=Image.new("L", (8, 8), 255), strength=1.0)
    assert np.abs(ours - other).max() > 5, "the mask matters"


def test_without_images_a_sample_is_inpainted_everywhere(inpainting_model: Path) -> None:
    gray, white = Image.new("RGB", (64, 48), (7, 7, 7)), Image.new("L", (64, 48), 255)
    theirs = sample_in_diffusers(stock_pipeline(inpainting_model), PROMPT, image=gray, mask_image=white, strength=1.0)
    assert np.abs(sample_with_ours(load_tiny(inpainting_model), PROMPT) - theirs).max() <= 1
