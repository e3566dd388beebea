"""The frames of clips: their buckets, the order of an epoch, their cache keys, shapes of latents, and guidance."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.data.buckets import BucketRules, Size
from modules.data.cache.inputs import BlankImage
from modules.data.cache.masks import MaskFile
from modules.data.image_settings import ImageChanges
from modules.data.order import ConceptRepeats, groups_of_epoch, sample_indices_of_epoch, sizes_of_epoch
from modules.data.references import BatchShape, ReferenceFit, ReferenceSizes, batch_shapes, num_pixels
from modules.data.samples import SizeTable
from modules.data.transforms.recipe import draw_recipe, plain_recipe
from modules.families.projected_guidance import ProjectedGuidance
from modules.families.registry import FAMILIES
from modules.families.spec import LatentSpec
from modules.sampling.denoising_loop import guide, guide_projected

RULES = BucketRules((64, 96), step_px=16, max_aspect_ratio=2.0, is_bucketing=True, frame_counts=(1, 5, 9))
sides = st.integers(32, 400)
clips = st.builds(Size, sides, sides, st.integers(1, 30))
CHANGES = ImageChanges(flip="random", rotate="random", crop_jitter=True)


# -- buckets


@given(clip=clips, never_upscale=st.booleans())
def test_a_clip_gets_the_bucket_of_an_image_with_the_most_frames_that_it_has(clip: Size, never_upscale: bool) -> None:
    rules = replace(RULES, never_upscale=never_upscale)
    of_clip, of_image = (rules.resize_crops(size, rules.sizes()) for size in (clip, replace(clip, num_frames=1)))
    expected = 9 if clip.num_frames >= 9 else 5 if clip.num_frames >= 5 else 1
    assert {fit.bucket.num_frames for fit in of_clip} == {expected}
    assert [replace(fit, bucket=replace(fit.bucket, num_frames=1)) for fit in of_clip] == list(of_image)
    assert [fit.is_exact for fit in of_clip] == [fit.is_exact for fit in of_image]


@given(clip=clips, seed=st.integers(0, 100))
def test_augmentations_keep_the_frames(clip: Size, seed: int) -> None:
    [fit, _] = RULES.resize_crops(clip, RULES.sizes())
    recipe = draw_recipe(CHANGES, size=clip, resize_crop=fit, mask_box=None, seed=seed)
    assert recipe.bucket == fit.bucket


def test_a_clip_is_named_with_its_frames() -> None:
    assert [str(Size(64, 48)), str(Size(64, 48, 5))] == ["64x48", "64x48x5"]


def test_the_pixels_of_a_clip_are_those_of_its_frames() -> None:
    fit = ReferenceFit(ReferenceSizes(16), follows_image=False)
    [[shape]] = batch_shapes([(Size(64, 48, 5),)], [(Size(640, 480, 7), [Size(32, 32)])], fit)
    assert shape == BatchShape(64, 48, 5, (Size(32, 32),))
    assert str(shape) == "64x48x5+32x32"
    assert num_pixels(shape) == 5 * 64 * 48 + 32 * 32


# -- batches


@given(
    buckets=st.lists(
        st.tuples(*[st.sampled_from([Size(w, 64, f) for w in (64, 96) for f in (1, 5, 9)])] * 2), min_size=1
    ),
    batch_size=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_images_and_clips_are_never_in_one_batch(buckets: list[tuple[Size, Size]], batch_size: int, seed: int) -> None:
    concepts = [ConceptRepeats(0, len(buckets), 1.5)]
    samples = sample_indices_of_epoch(concepts, num_resolutions=2, epoch=seed)
    groups = groups_of_epoch(samples, buckets, batch_size=batch_size, accumulation_steps=1, run_seed=seed, epoch=seed)
    batches = [batch for [batch] in groups]
    assert sorted(s for batch in batches for s in batch) == sorted(samples)
    assert all(len({buckets[s.example][s.resolution] for s in batch}) == 1 for batch in batches)
    counts = sizes_of_epoch(concepts, buckets, num_resolutions=2, epoch=seed)
    assert len(batches) == sum(-(-n // batch_size) for n in counts.values())


@given(st.lists(st.sampled_from([Size(w, h) for w in (64, 96) for h in (64, 96)]), min_size=1), st.randoms())
def test_images_alone_are_ordered_as_without_clips(sizes: list[Size], draw: random.Random) -> None:
    """Sizes sort by their sides first: clips between them change no number of a size before them."""
    table, mixed = SizeTable([(s,) for s in sizes]), SizeTable([(s,) for s in sizes] + [(Size(96, 96, 5),)])
    assert mixed.sizes == [*table.sizes, Size(96, 96, 5)]
    draw.shuffle(sizes)
    assert SizeTable([(s,) for s in sizes]).sizes == table.sizes


# -- latents and masks


@pytest.mark.parametrize(("num_frames", "shape"), [(1, (16, 6, 8)), (2, (16, 1, 6, 8)), (9, (16, 3, 6, 8))])
def test_the_latents_of_a_clip_have_frames(num_frames: int, shape: tuple[int, ...]) -> None:
    assert FAMILIES["hunyuan_video"].latents.shape(64, 48, num_frames) == shape


def test_a_family_of_images_has_a_latent_for_each_frame() -> None:
    assert LatentSpec(channels=4, factor=8).shape(64, 48, 7) == (4, 7, 6, 8)


def test_blank_images_and_masks_of_clips_have_frames() -> None:
    [fit, _] = RULES.resize_crops(Size(64, 64, 5), RULES.sizes())
    recipe, file = plain_recipe(fit), Path("clip")
    assert BlankImage(file, recipe).load_tensor().shape == (3, 5, 64, 64)
    for seed in (None, 3):
        mask = MaskFile(None, recipe, Size(64, 64, 5), False, 8, seed).load()
        image_fit = replace(fit, bucket=replace(fit.bucket, num_frames=1))
        of_image = MaskFile(None, plain_recipe(image_fit), Size(64, 64), False, 8, seed).load()
        assert mask.shape == (1, 1, 8, 8)
        assert torch.equal(mask[:, 0], of_image)


# -- guidance

NEGATIVE, POSITIVE = torch.randn((2, 3, 4, 6, 8), generator=torch.Generator().manual_seed(1))


def predict(noisy: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    """Return fixed predictions, for each frame if the latents are those of a clip, times the timestep."""
    found = torch.cat([NEGATIVE, POSITIVE]) * timestep
    return found if noisy.dim() == 4 else found.unsqueeze(2).expand(-1, -1, noisy.shape[2], -1, -1)


@pytest.mark.parametrize("norm_over", [0, 2, "rows"])
def test_guidance_treats_each_frame_as_an_image(norm_over: Any) -> None:
    run, time = guide(predict, 4.0, norm_over=norm_over), torch.tensor(2.0)
    of_clip = run(torch.zeros(3, 4, 5, 6, 8), time)
    for frame in of_clip.unbind(2):
        torch.testing.assert_close(frame, run(torch.zeros(3, 4, 6, 8), time))


def test_projected_guidance_projects_the_whole_clip() -> None:
    """The norms are those of all frames: with equal frames the largest norm counts for one frame by its root."""
    settings = ProjectedGuidance(plain_steps=1)
    of_clip = guide_projected(predict, 4.0, replace(settings, most_norm=10.0 * 5**0.5))
    of_image = guide_projected(predict, 4.0, settings)
    for time in map(torch.tensor, (1.0, 2.0, 3.0)):
        found, expected = of_clip(torch.zeros(3, 4, 5, 6, 8), time), of_image(torch.zeros(3, 4, 6, 8), time)
        for frame in found.unbind(2):
            torch.testing.assert_close(frame, expected)
