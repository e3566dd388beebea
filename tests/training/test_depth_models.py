"""Depth models: trained and sampled with depth maps from files, since no depth is estimated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionDepth2ImgPipeline
from PIL import Image
from safetensors.torch import load_file

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.data.batch import Batch
from modules.data.depth import latent_depth
from modules.families.kinds.conversion import open_folder, write_model
from modules.families.kinds.identify import identify
from modules.formats.lazy_tensors import lazy_state
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.models import write_depth_folder
from tests.builders.pipelines import clip_tokenizer, load_tiny, sample_with_ours
from tests.builders.runs import assert_equal_tensors, run
from tests.builders.single_files import NOW, depth_estimator
from trainer.__main__ import main
from trainer.events import ModelSaved, SampleReady, ValidationFinished
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepContext, StepLoss
from trainer.preflight import check

SIDE = 64
PROMPT = SamplePrompt(prompt="a disc", width_px=SIDE, height_px=SIDE, steps=3, guidance=2.0)


@pytest.fixture
def model(tiny_sd2: Path, tmp_path: Path) -> Path:
    return write_depth_folder(tmp_path / "model", tiny_sd2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images whose depth rises from left to right, but not over the whole range of gray."""
    images = draw_folder(tmp_path / "depth_images", sizes=[(SIDE, SIDE)] * 2, captions=["a disc"])
    for number in range(2):
        rising_depth().save(images / f"{number:03}-condlabel.png")
    return images


@pytest.fixture
def config(model: Path, folder: Path, tmp_path: Path) -> Config:
    return laid_over(small_config(tmp_path, model=model, images=folder), {"model": {"variant": "depth"}})


def rising_depth() -> Image.Image:
    return Image.fromarray(np.tile(np.linspace(60, 180, SIDE).astype(np.uint8), (SIDE, 1)))


@pytest.mark.parametrize("flip", ["off", "always"])
def test_the_depth_is_at_the_place_of_its_image(config: Config, monkeypatch: pytest.MonkeyPatch, flip: str) -> None:
    seen: list[Batch] = []
    plain = Denoise.loss

    def loss(self: Denoise, batch: Batch, context: StepContext) -> StepLoss:
        seen.append(batch)
        return plain(self, batch, context)

    monkeypatch.setattr(Denoise, "loss", loss)
    concept = {**config.concepts[0].model_dump(), "image": {"flip": flip}}
    run(laid_over(config, {"concepts": [concept], "training": {"epochs": 1}}))
    for batch in seen:
        assert batch.inputs["depth"].shape == (2, 1, 8, 8)
        for depth_1HW in batch.inputs["depth"]:
            assert (float(depth_1HW.min()), float(depth_1HW.max())) == (-1, 1)
            steps = depth_1HW.diff(dim=-1)
            assert bool((steps < 0).all() if flip == "always" else (steps > 0).all())


def test_a_flat_depth_map_is_zero() -> None:
    assert torch.equal(latent_depth(torch.full((1, 1, 16, 16), 0.7), 8), torch.zeros(1, 1, 2, 2))


def test_samples_are_those_of_diffusers_from_the_same_noise(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """diffusers' pipeline starts from an image, so its start is replaced with the noise."""
    rising_depth().save(tmp_path / "depth.png")
    family = load_tiny(model)
    pipe: Any = StableDiffusionDepth2ImgPipeline(
        vae=family.vae,
        text_encoder=family.towers["text_encoder"].encoder,
        tokenizer=clip_tokenizer("!"),
        unet=family.denoiser,
        scheduler=_scheduler(family),
        depth_estimator=None,
        feature_extractor=None,
    )
    pipe.set_progress_bar_config(disable=True)

    def noise(*given: Any, **options: Any) -> torch.Tensor:
        drawn = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(PROMPT.seed))
        return drawn * pipe.scheduler.init_noise_sigma

    monkeypatch.setattr(pipe, "prepare_latents", noise)
    [theirs] = pipe(
        PROMPT.prompt,
        image=Image.new("RGB", (SIDE, SIDE)),
        depth_map=torch.from_numpy(np.asarray(rising_depth(), dtype=np.float32))[None] / 255,
        strength=1.0,
        num_inference_steps=PROMPT.steps,
        guidance_scale=PROMPT.guidance,
    ).images
    ours = sample_with_ours(family, PROMPT.model_copy(update={"depth_image": str(tmp_path / "depth.png")}))
    assert np.abs(ours - np.asarray(theirs, dtype=int)).max() <= 1
    assert np.abs(ours - sample_with_ours(family, PROMPT)).max() > 5, "the depth map matters"


def _scheduler(family: Any) -> Any:
    from modules.sampling.denoising_loop import make_scheduler

    return make_scheduler(PROMPT.sampler, family.scheduler_config())


def test_a_lora_is_trained_with_validation_and_samples(config: Config, folder: Path, tmp_path: Path) -> None:
    prompt = PROMPT.model_copy(update={"depth_image": str(folder / "000-condlabel.png")})
    changed = laid_over(
        config,
        {
            "concepts": [{"path": str(folder), "kind": kind} for kind in ("training", "validation")],
            "validation": {"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 1},
            "sampling": {"at_end": True, "prompts": [prompt.model_dump()]},
        },
    )
    assert check(changed).errors == []
    ran = run(changed)
    assert ran.finished.outcome == "finished"
    assert len({v.loss for v in ran.of(ValidationFinished)}) > 1
    assert ran.of(SampleReady)
    assert identify(Path(ran.of(ModelSaved)[-1].path)).family == "sd"


def test_a_fine_tune_becomes_a_folder_that_diffusers_loads(config: Config, tmp_path: Path) -> None:
    """Its depth estimator is to be given: no training changes it."""
    changed = laid_over(
        config,
        {
            "training": {"trains": "full", "epochs": 1},
            "output": {"dtype": "float32", "model_format": "diffusers", "destination": str(tmp_path / "tuned")},
        },
    )
    assert check(changed).errors == []
    assert run(changed).finished.outcome == "finished"
    assert identify(tmp_path / "tuned").variant == "depth"
    pipe = StableDiffusionDepth2ImgPipeline.from_pretrained(
        tmp_path / "tuned", local_files_only=True, depth_estimator=None, feature_extractor=None
    )
    assert pipe.unet.config.in_channels == 5
    single = laid_over(changed, {"output": {"model_format": "single_file"}})
    assert any("depth estimator" in p.message for p in problems_of(single))


def test_a_single_file_is_read_trained_and_converted(model: Path, folder: Path, tmp_path: Path) -> None:
    """There and back it keeps the depth estimator, which is beside the model; a folder has none."""
    file = tmp_path / "depth.safetensors"
    source = replace(open_folder(model, identify(model)), companions=lazy_state(depth_estimator()))
    write_model(source, file, "single", dtype=None, created=NOW)
    kind = identify(file)
    assert (kind.kind, kind.variant, kind.is_whole) == ("checkpoint", "depth", True)
    config = laid_over(small_config(tmp_path, model=file, images=folder), {"model": {"variant": "depth"}})
    assert check(config).errors == []
    assert identify(Path(run(config).of(ModelSaved)[-1].path)).family == "sd"
    assert main(["convert", str(file), str(tmp_path / "again.safetensors"), "--to", "single"]) == 0
    first, again = (load_file(tmp_path / f"{n}.safetensors") for n in ("depth", "again"))
    assert again.keys() > depth_estimator().keys()
    assert_equal_tensors(first, again)
    assert main(["convert", str(file), str(tmp_path / "as_folder")]) == 0
    assert identify(tmp_path / "as_folder").variant == "depth"
    weights = "unet/diffusion_pytorch_model.safetensors"
    assert_equal_tensors(load_file(tmp_path / "as_folder" / weights), load_file(model / weights))


def test_convert_refuses_a_single_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(model), str(tmp_path / "one.safetensors")]) == 2
    assert "depth estimator" in capsys.readouterr().err


def test_images_without_a_depth_map_are_named(config: Config, folder: Path) -> None:
    assert check(config).errors == []
    (folder / "001-condlabel.png").unlink()
    [problem] = check(config).errors
    assert "1 of 2 images has no depth map; the first is 001." in problem.message


def test_sdxl_has_no_depth_models(config: Config) -> None:
    changed = laid_over(config, {"model": {"family": "sdxl"}})
    assert any("has no depth models" in p.message for p in problems_of(changed))
