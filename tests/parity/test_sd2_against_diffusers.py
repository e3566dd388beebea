"""Stable Diffusion 2.x against diffusers' pipeline, at toy size, in fp32: OpenCLIP, linear projections, v-prediction.

Measured worst cases were below 2e-6 at values of order one, as for SD 1.x.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.sections.evaluation import SamplePrompt
from modules.families.sd.model import StableDiffusion
from tests.builders.pipelines import assert_same_image, load_tiny, sample_in_diffusers, sample_with_ours, stock_pipeline

PROMPT, NEGATIVE = "a small red disc on a green ground", "blurred"


@pytest.fixture(scope="module")
def family(tiny_sd2: Path) -> StableDiffusion:
    return load_tiny(tiny_sd2, "sd")


@pytest.fixture(scope="module")
def pipeline(tiny_sd2: Path) -> Any:
    return stock_pipeline(tiny_sd2)


def test_text_states_are_those_of_the_pipeline(family: StableDiffusion, pipeline: Any) -> None:
    with torch.no_grad():
        ours = family.encode_prompts([PROMPT, ""]).states_BLD
        theirs = [pipeline.encode_prompt(p, "cpu", 1, False)[0] for p in (PROMPT, "")]
    torch.testing.assert_close(ours, torch.cat(theirs), rtol=0, atol=1e-5)


def test_prompts_are_padded_with_zeros_not_with_end_tokens(family: StableDiffusion) -> None:
    ids = family.towers["text_encoder"].tokenizer.chunks("a cat")[0]
    assert ids[3:] == [49407, *[0] * 73]


def test_prediction_is_the_unets(family: StableDiffusion, pipeline: Any) -> None:
    noisy_BCHW = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    timesteps_B = torch.tensor([1, 500, 999])
    with torch.no_grad():
        conditioning = family.encode_prompts(["one", "two", "three"])
        ours = family.predict(noisy_BCHW, timesteps_B, conditioning)
        theirs = pipeline.unet(noisy_BCHW, timesteps_B, encoder_hidden_states=conditioning.states_BLD).sample
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sampler", ["ddim", "euler_a", "dpmpp", "unipc"])
def test_a_sample_is_the_pipelines(family: StableDiffusion, pipeline: Any, sampler: str) -> None:
    prompt = SamplePrompt(
        prompt=PROMPT, negative_prompt=NEGATIVE, width_px=64, height_px=96, seed=7, steps=5, guidance=4.0,
        sampler=sampler,
    )  # fmt: skip
    assert_same_image(sample_with_ours(family, prompt), sample_in_diffusers(pipeline, prompt))


def test_the_prediction_type_is_read_from_its_scheduler(family: StableDiffusion, tiny_sd: Path) -> None:
    assert family.process.prediction_type == "v_prediction"
    assert load_tiny(tiny_sd, "sd").process.prediction_type == "epsilon"
    naming = family.lora_naming
    assert (naming.base_version, naming.architecture) == ("sd_v2_v", "stable-diffusion-v2-768-v")
