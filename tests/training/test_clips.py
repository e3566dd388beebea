"""A run on images and clips of a model of videos, from the files to the loss.

The program reads no videos yet: here the frames of animated GIFs stand in for them, read by a reader of the test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode

from modules.config.schema import Config
from modules.data import datasets as scans_module
from modules.data.buckets import BucketRules, Size
from modules.data.cache import build
from modules.data.decode import flatten
from modules.data.scan import Scan
from modules.data.transforms.apply import Pixels, load_pixels, resize_and_crop
from modules.data.transforms.recipe import Recipe
from modules.estimate.passes import Passes
from modules.estimate.recordings import recordings_of
from modules.families.hunyuan_video.model import HunyuanVideo
from modules.families.hunyuan_video.spec import HUNYUAN_VIDEO
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.memory.part_plan import PartPlan
from modules.system.factories import load_factory
from tests.builders.configs import config_fixture, laid_over
from tests.builders.images import draw_image, draw_mask
from tests.builders.live_bytes import LiveBytes, give_weights
from tests.builders.pipelines import family_fixture
from tests.builders.runs import assert_equal_tensors, losses, run
from trainer.data import datasets as settings_module
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

BASE: dict[str, Any] = {
    "data": {"latent_cache": True, "text_cache": True},
    "training": {"epochs": 1, "batch_size": 2, "learning_rate": 0.01},
    "masks": {"enabled": True, "unmasked_probability": 0.0},
    "output": {"dtype": "float32", "format": "comfyui", "embed_dataset": "counts"},
}
FRAMES = {"a.gif": 9, "b.gif": 11, "c.gif": 5, "d.png": 1, "e.png": 1}
config = config_fixture("tiny_hunyuan_video", BASE)
family = family_fixture("tiny_hunyuan_video", HUNYUAN_VIDEO.name)


def load_frames(path: Path, recipe: Recipe) -> Pixels:
    """Return the frames of a clip, uint8 (F, height, width, 3), or an image."""
    if recipe.bucket.num_frames == 1:
        return load_pixels(path, recipe)
    with Image.open(path) as clip:
        frames = []
        for number in range(recipe.bucket.num_frames):
            clip.seek(number)
            frames.append(np.asarray(resize_and_crop(flatten(clip.copy()), recipe.geometry), dtype=np.uint8))
    return np.stack(frames)


@pytest.fixture
def clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of clips and images, which the scan, the rules of buckets and the reader of pixels know."""
    folder = tmp_path / "clips"
    folder.mkdir()
    for index, (name, count) in enumerate(FRAMES.items()):
        first, *others = (draw_image(64, 64, index + number) for number in range(count))
        first.save(folder / name, **({"save_all": True, "append_images": others} if others else {}))
        (folder / name).with_suffix(".txt").write_text(f"clip {index}")
    draw_mask(folder / "a-masklabel.png")
    scan_concept = scans_module.scan_concept

    def scan(*args: Any, **kwargs: Any) -> Scan:
        found = scan_concept(*args, **kwargs)
        return replace(found, images=tuple(replace(i, num_frames=FRAMES[i.file_name]) for i in found.images))

    monkeypatch.setattr(scans_module, "scan_concept", scan)
    monkeypatch.setattr(settings_module, "BucketRules", partial(BucketRules, frame_counts=(1, 5, 9)))
    monkeypatch.setattr(build, "load_pixels", load_frames)
    return folder


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the latents of each prediction of a HunyuanVideo."""
    seen: list[tuple[int, ...]] = []
    predict = HunyuanVideo.predict

    def spy(self: HunyuanVideo, noisy: torch.Tensor, *args: Any, **kwargs: Mapping[str, Any]) -> torch.Tensor:
        seen.append(tuple(noisy.shape))
        return predict(self, noisy, *args, **kwargs)

    monkeypatch.setattr(HunyuanVideo, "predict", spy)
    return seen


@torch.no_grad()
def test_the_vae_encodes_a_clip_and_its_first_frame_as_an_image(family: HunyuanVideo) -> None:
    """The encoder is causal, so that the latents of the first frame depend on no other, but for its norms."""
    frames = torch.rand((1, 3, 5, 64, 64), generator=torch.Generator().manual_seed(0))
    latents = family.encode_images(frames)
    assert latents.shape == (1, 16, 2, 8, 8)
    assert latents.shape[1:] == HUNYUAN_VIDEO.latents.shape(64, 64, 5)
    assert family.encode_images(frames[:, :, :1]).squeeze(2).equal(family.encode_images(frames[:, :, 0]))


def test_images_and_clips_are_trained_in_batches_of_their_own(
    config: Config, clips: Path, shapes: list[tuple[int, ...]]
) -> None:
    config = laid_over(config, {"concepts": [{"path": str(clips)}]})
    ran = run(config)
    of_steps = shapes[-3:]  # before them is the dry run
    assert sorted(of_steps) == [(1, 16, 2, 8, 8), (2, 16, 3, 8, 8), (2, 16, 8, 8)]
    assert all(np.isfinite(losses(ran)))
    first = losses(ran)
    assert losses(run(config)) == first  # from the cache
    uncached = run(laid_over(config, {"data": {"latent_cache": False}}))
    assert losses(uncached) == first
    assert_equal_tensors(uncached.weights, ran.weights)


def test_the_check_counts_frames(config: Config, clips: Path) -> None:
    report = check(laid_over(config, {"concepts": [{"path": str(clips)}]}))
    assert not report.errors
    assert report.preview is not None
    assert dict(report.preview.buckets) == {"64x64x9": 2, "64x64x5": 1, "64x64": 2}


def test_a_clip_needs_the_memory_of_its_latents(config: Config) -> None:
    """In training. Its frames are encoded before."""
    image, clip, large = (
        memory_estimate(config, {size: 4}) for size in (Size(64, 64), Size(64, 64, 65), Size(64, 17 * 64))
    )
    assert image is not None
    assert clip is not None
    assert large is not None
    assert clip.phase("training") == large.phase("training")
    sizes = [dict(e.phase("encoding images").parts)["activations"] for e in (image, large, clip)]
    assert sizes == sorted(sizes)


@torch.no_grad()
@pytest.mark.parametrize("num_frames", [5, 13, pytest.param(17, marks=pytest.mark.full), 33])
def test_encoding_a_clip_needs_the_estimated_memory(num_frames: int) -> None:
    """The published VAE in float32. It had been that of an image with as many latents, a half to a sixth."""
    part, configs = HUNYUAN_VIDEO.parts[-1], shipped_configs("hunyuan_video")
    vae: Any = empty_part(load_factory(part.model_class), configs["vae"])
    with FakeTensorMode():
        give_weights(vae, dtype=torch.float32, adapter_dtype=torch.float32, learns=lambda name: False)
        with LiveBytes() as live:
            vae.encode(torch.empty(1, 3, num_frames, 256, 256)).latent_dist.mode()
    passes = Passes(HUNYUAN_VIDEO, recordings_of(HUNYUAN_VIDEO, configs))
    found = passes.vae_peak(PartPlan(), encodes=True, width_px=256, height_px=256, num_frames=num_frames)
    assert found == pytest.approx(live.peak, rel=0.1)
