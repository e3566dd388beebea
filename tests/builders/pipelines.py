"""Stock diffusers pipelines of tiny models, and our own sampler beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from transformers import CLIPTokenizer

from modules.config.sections.evaluation import SamplePrompt
from modules.families.parts.clip_vocabulary import END_TOKEN, clip_merges, clip_vocabulary
from modules.families.protocol import LoadRequest, ModelFamily
from modules.families.registry import FAMILIES
from modules.memory.placement import Placement
from modules.sampling.denoising_loop import make_scheduler
from modules.system.devices import CPU
from modules.system.factories import load_factory
from tests.builders.configs import family_of
from trainer.callbacks.image_sampler import ImageSampler
from trainer.step.precision import Precision


def load_tiny(folder: Path, family: str = "", **options: Any) -> Any:
    """A tiny model of a family, on the CPU; `options` are settings of the family and fields of the request."""
    spec = FAMILIES[family or family_of(folder)]
    if not (folder / "decoder").is_dir():  # a result: what its base model did not contain is not there either
        options.setdefault("without_weights", {part.name for part in spec.parts if not part.is_in_base_model})
    own = {name: options.pop(name) for name in list(options) if name in spec.settings.model_fields}
    return load_factory(spec.factory)(LoadRequest(str(folder), spec.settings(**own), **options))


def family_fixture(folder: str, family: str, **options: Any) -> Any:
    """A fixture `family`: the tiny model in the folder of another fixture."""

    @pytest.fixture
    def loaded(request: pytest.FixtureRequest) -> Any:
        return load_tiny(request.getfixturevalue(folder), family, **options)

    return loaded


def noise_of(family: ModelFamily, *, batch: int, seed: int) -> torch.Tensor:
    """Random latents (B, C, H, W) of small images."""
    side_px = max(64, family.spec.size_step_px)
    shape = family.spec.latents.shape(side_px, side_px)
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed))


def denoiser_of(family: ModelFamily) -> torch.nn.Module:
    """The module that predicts."""
    return family.parts[family.spec.denoiser.name].module


def linear_layers(family: ModelFamily) -> set[str]:
    """The linear layers of the denoiser that an adapter can train, by their path, and convolutions of one pixel."""
    part = family.parts[family.spec.denoiser.name]
    return {n for n, m in part.module.named_modules() if _is_linear(m) and part.reaches(n)}


def _is_linear(layer: torch.nn.Module) -> bool:
    return isinstance(layer, torch.nn.Linear) or (
        isinstance(layer, torch.nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1
    )


def latents_and_image(
    pipe: Any, noise_BCHW: torch.Tensor, guidance: float, *, factor: int = 8, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample a flow model's pipeline from noise in four steps; return its latents and its image.

    `options` are the pipeline's own, such as the prompt.
    """
    height, width = (factor * side for side in noise_BCHW.shape[-2:])
    usual = {"latents": noise_BCHW, "guidance_scale": guidance, "num_inference_steps": 4}
    options = {**usual, "height": height, "width": width, **options}
    latents, image = (pipe(**options, output_type=kind).images for kind in ("latent", "pt"))
    return latents, image


def clip_tokenizer(pad: str = END_TOKEN) -> CLIPTokenizer:
    """transformers' own tokenizer over the bundled vocabulary."""
    return CLIPTokenizer(vocab=clip_vocabulary(), merges=clip_merges(), model_max_length=77, pad_token=pad)


def stock_pipeline(folder: Path) -> Any:
    """The pipeline that a model's folder names, with the tokenizers of its encoders' training."""
    name = json.loads((folder / "model_index.json").read_text())["_class_name"]
    parts: dict[str, Any] = {}
    for encoder in ("text_encoder", "text_encoder_2"):
        if (folder / encoder).is_dir():
            activation = json.loads((folder / encoder / "config.json").read_text())["hidden_act"]
            parts[encoder.replace("text_encoder", "tokenizer")] = clip_tokenizer(
                "!" if activation == "gelu" else END_TOKEN
            )
    if name in ("StableDiffusionPipeline", "StableDiffusionInpaintPipeline"):
        parts |= {"safety_checker": None, "feature_extractor": None}
    pipe = getattr(diffusers, name).from_pretrained(folder, local_files_only=True, **parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def sample_in_diffusers(pipe: Any, prompt: SamplePrompt, **images: Any) -> np.ndarray:
    """The pipeline's image, with our scheduler settings; `images` are those that an inpainting pipeline takes."""
    pipe.scheduler = make_scheduler(prompt.sampler, pipe.scheduler.config)
    image = pipe(
        prompt.prompt,
        negative_prompt=prompt.negative_prompt,
        width=prompt.width_px,
        height=prompt.height_px,
        num_inference_steps=prompt.steps,
        guidance_scale=prompt.guidance,
        generator=torch.Generator("cpu").manual_seed(prompt.seed),
        **images,
    ).images[0]
    return np.asarray(image, dtype=int)


def sample_with_ours(family: ModelFamily, prompt: SamplePrompt, **settings: Any) -> np.ndarray:
    """Our sampler's image; `settings` are further ones of the sampler."""
    placement = Placement(
        {n: p.module for n, p in family.parts.items()},
        train_device=CPU,
        temp_device=CPU,
        needed_in=lambda phase: frozenset(family.parts),
    )
    sampler = ImageSampler(family, placement, CPU, Precision("float32", CPU), **settings)
    [image] = sampler.sample([prompt], on_step=lambda: None)
    placement.close()
    return np.asarray(image, dtype=int)


def assert_same_image(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal up to rounding at the border between two of 256 levels, which an error of 1e-7 can tip."""
    assert np.abs(ours - theirs).max() <= 1
    assert (ours == theirs).mean() > 0.999
