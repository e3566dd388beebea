"""Samples of a run of models that guide them in their own way are those of diffusers' pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.guiders import AdaptiveProjectedMixGuidance

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.projected_guidance import ProjectedGuidance
from modules.sampling.denoising_loop import guide_projected, initial_noise, run_denoising_loop, scheduler_for
from modules.system.devices import CPU
from tests.builders.configs import laid_over, small_config
from tests.builders.flow_models import flow_model
from tests.builders.pipelines import load_tiny
from tests.builders.standalone import generate_samples

SEED = 3


def sampled(config: Config, *, side_px: int, steps: int, guidance: float) -> np.ndarray:
    prompt = {"prompt": "a disc", "steps": steps, "guidance": guidance, "seed": SEED, "sampler": "euler"}
    prompt |= {"width_px": side_px, "height_px": side_px}
    [image] = generate_samples(laid_over(config, {"sampling": {"prompts": [prompt]}}), None)
    return np.asarray(image, dtype=np.float32) / 255.0


@torch.no_grad()
@pytest.mark.parametrize("name", ["tiny_qwen_image", "tiny_lumina2", "tiny_hunyuan_image"])
def test_a_sample_of_a_run_is_guided_as_in_the_pipeline(
    name: str, request: pytest.FixtureRequest, images: Path, tmp_path: Path, one_thread: None
) -> None:
    tiny, model = flow_model(name), request.getfixturevalue(name)
    family: Any = load_tiny(model, tiny.family)
    noise, _ = initial_noise((1, *tiny.spec.latents.shape(tiny.side_px, tiny.side_px)), seed=SEED, device=CPU)
    _, theirs = tiny.sample(tiny.pipeline(model, family), "a disc", noise, 5.0)
    config = small_config(tmp_path, model=model, images=images)
    ours = sampled(config, side_px=tiny.side_px, steps=4, guidance=5.0)
    assert np.abs(ours - theirs[0].permute(1, 2, 0).numpy()).max() < 1.5 / 255


@torch.no_grad()
def test_later_steps_of_hunyuan_image_are_projected(
    tiny_hunyuan_image: Path, images: Path, tmp_path: Path, one_thread: None
) -> None:
    """By the guider of the published pipeline, in more steps than are guided as usual."""
    tiny = flow_model("tiny_hunyuan_image")
    family: Any = load_tiny(tiny_hunyuan_image, tiny.family)
    noise, generator = initial_noise((1, 64, 2, 2), seed=SEED, device=CPU)
    pipe = tiny.pipeline(tiny_hunyuan_image, family)
    options = {"negative_prompt": [""], "height": 64, "width": 64, "latents": noise}

    pipe.guider = AdaptiveProjectedMixGuidance(3.5)
    [theirs] = pipe(["a disc"], num_inference_steps=9, output_type="np", **options).images
    ours = sampled(small_config(tmp_path, model=tiny_hunyuan_image, images=images), side_px=64, steps=9, guidance=3.5)
    assert np.abs(ours - theirs).max() < 1.5 / 255

    pipe.guider = AdaptiveProjectedMixGuidance(3.5, adaptive_projected_guidance_start_step=1)
    wanted = pipe(["a disc"], num_inference_steps=4, output_type="latent", **options).images
    text = family.join([family.encode_prompts([""]), family.encode_prompts(["a disc"])], family.encode_prompts([""]))

    def predict(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        prediction: torch.Tensor = family.predict(noisy_BCHW, timestep.expand(len(noisy_BCHW)), text)
        return prediction

    latents = run_denoising_loop(
        guide_projected(predict, 3.5, ProjectedGuidance(plain_steps=2)),
        scheduler_for(family, "euler", Size(64, 64)),
        noise,
        num_steps=4,
        generator=generator,
        on_step=lambda: None,
    )
    torch.testing.assert_close(latents, wanted, rtol=1e-4, atol=1e-4)


def test_quoted_text_is_guided_as_usual_for_longer() -> None:
    projected = flow_model("tiny_hunyuan_image").spec.projected_guidance
    assert projected is not None
    assert [projected(text).plain_steps for text in ("a disc", 'a sign "OPEN"')] == [6, 39]
