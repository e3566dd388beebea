"""What the preview shows is what a run trains: the same pixels, masks and captions, for every use of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.concept import Concept
from modules.data.transforms.apply import load_pixels
from modules.data.transforms.geometry import Box, Geometry, cut_to_mask, rotated_fit
from modules.data.versions import ImageVersions
from modules.settings.edit import set_path
from trainer.data.datasets import datasets_of
from trainer.data.preview import ConceptPreview
from trainer.preflight.statistics import concept_statistics


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cats"
    folder.mkdir()
    for n, size in enumerate(((80, 60), (60, 90), (64, 64))):
        image = Image.effect_noise(size, 60).convert("RGB")
        ImageDraw.Draw(image).ellipse((10, 10, 40, 40), fill=(200, 30, 30))
        image.save(folder / f"cat_{n}.png")
        (folder / f"cat_{n}.txt").write_text(f"a cat, tag {n}, red, sitting\nanother caption {n}", encoding="utf-8")
    mask = Image.new("L", (80, 60))
    mask.paste(255, (10, 10, 50, 50))
    mask.save(folder / "cat_0-masklabel.png")
    return folder


def config_of(folder: Path, **changes: Any) -> Config:
    other = folder.parent / "dogs"
    other.mkdir(exist_ok=True)
    for n in range(2):
        Image.new("RGB", (64, 64)).save(other / f"dog_{n}.png")
    config = Config(concepts=(Concept(path=str(other)), Concept(path=str(folder)), Concept(path="/nowhere")))
    usual = {
        "data.resolution_px": [64, 128],
        "masks.enabled": True,
        "concepts.2.enabled": False,
        "concepts.1.image.rotate": "random",
        "concepts.1.image.rotate_max_degrees": 20.0,
        "concepts.1.image.flip": "random",
        "concepts.1.image.crop_jitter": True,
        "concepts.1.image.brightness": "random",
        "concepts.1.image.brightness_max": 0.3,
        "concepts.1.text.shuffle_tags": True,
        "concepts.1.image_variations": 3,
        "concepts.1.text_variations": 4,
        "data.caption_dropout": 0.2,
    }
    for path, value in (usual | changes).items():
        config, problems = set_path(config, path, value)
        assert not problems
    return config


@pytest.mark.parametrize("has_cache", [True, False])
def test_the_preview_is_what_the_run_trains(folder: Path, has_cache: bool) -> None:
    config = config_of(folder, **{"data.latent_cache": has_cache, "data.text_cache": has_cache})
    preview = ConceptPreview(config, 1)
    datasets = datasets_of(config)
    versions = ImageVersions(datasets.training, datasets.settings.run_seed, is_cached=has_cache)
    assert [e.image.path.name for e in preview.examples] == ["cat_0.png", "cat_1.png", "cat_2.png"]
    captions = set()
    for image in (1, 2):
        uses = preview.uses(image)
        number = datasets.training.examples.index(preview.examples[image])
        assert uses[:4] == [s for epoch in range(4) for s in datasets.plans.samples_of(number, epoch)]
        for use in uses[:4]:
            seen = preview.use(use)
            trained = load_pixels(seen.path, versions.of(use).recipe)
            assert np.array_equal(np.asarray(seen.pixels), trained)
            assert seen.bucket == versions.of(use).recipe.bucket
            captions.add(seen.caption)
    assert len(captions) > 2


def test_the_mask_darkens_what_is_outside(folder: Path) -> None:
    preview = ConceptPreview(config_of(folder, **{"concepts.1.image": {}}), 1)
    seen, plain = preview.use(preview.uses(0)[0]), preview.use(preview.uses(0)[0], is_augmented=False)
    assert seen.has_mask
    trained = load_pixels(seen.path, preview._versions.of(seen.sample_index).recipe)
    darker = np.asarray(seen.pixels, dtype=int).sum() / trained.astype(int).sum()
    assert 0.4 < darker < 0.9
    assert seen.changes == plain.changes == ()


def test_a_disabled_concept_and_one_without_repeats(folder: Path) -> None:
    preview = ConceptPreview(config_of(folder, **{"concepts.1.enabled": False, "concepts.1.repeats": 0.5}), 1)
    assert len(preview.examples) == 3
    assert [s.epoch for s in preview.uses(0)[:3]] == [1, 3, 5] or [s.epoch for s in preview.uses(0)[:3]] == [0, 2, 4]
    assert ConceptPreview(config_of(folder, **{"concepts.1.repeats": 0}), 1).uses(0) == []
    with pytest.raises(OSError):
        ConceptPreview(config_of(folder), 2)


@pytest.mark.parametrize("degrees", [0.0, 11.0, -37.0])
@pytest.mark.parametrize("has_cut", [False, True])
def test_the_corners_of_the_crop_span_its_box(degrees: float, has_cut: bool) -> None:
    size, bucket = Size(300, 200), Size(64, 96)
    cut = cut_to_mask(size, Box(50, 40, 120, 150), bucket, padding=(0.1,) * 4, degrees=degrees) if has_cut else None
    geometry = Geometry(rotated_fit(cut.size if cut else size, bucket, degrees), degrees, False, cut)
    corners = geometry.crop_corners(size)
    box = (*map(min, *corners), *map(max, *corners))
    assert box == pytest.approx(geometry.crop_box(size), abs=1e-6)
    assert min(box) >= -1e-6


def test_the_corners_are_where_the_pixels_come_from(tmp_path: Path) -> None:
    """A dot near a corner of the crop appears in that corner of the trained image."""
    size, bucket = Size(240, 200), Size(96, 96)
    geometry = Geometry(rotated_fit(size, bucket, 20.0), 20.0)
    left, top = geometry.crop_corners(size)[0]
    middle = [sum(c) / 4 for c in zip(*geometry.crop_corners(size), strict=True)]
    x, y = left + 0.15 * (middle[0] - left), top + 0.15 * (middle[1] - top)
    image = Image.new("RGB", (240, 200))
    ImageDraw.Draw(image).ellipse((x - 3, y - 3, x + 3, y + 3), fill="white")
    image.save(tmp_path / "dot.png")
    from modules.data.transforms.recipe import Recipe

    pixels = load_pixels(tmp_path / "dot.png", Recipe(geometry)).sum(axis=2)
    row, column = np.unravel_index(pixels.argmax(), pixels.shape)
    assert (int(row), int(column)) == pytest.approx((7, 7), abs=3)


def test_the_statistics_of_a_concept(folder: Path) -> None:
    (folder / "left over.txt").write_text("no image", encoding="utf-8")
    (folder / "gone-masklabel.png").write_bytes(b"")
    (folder / "cat_2.txt").write_text(" ".join(["word"] * 100), encoding="utf-8")
    reports: list[str] = []
    config = config_of(folder, **{"concepts.1.enabled": False, "concepts.1.text": {}})
    found = concept_statistics(config, 1, progress=lambda what, *_: reports.append(what))
    assert (found.num_images, found.num_captioned, found.num_captions) == (3, 3, 5)
    files = found.files
    assert (files.num_masks, files.num_unpaired_masks, files.num_images_without_mask) == (2, 1, 2)
    assert (files.num_caption_files, files.num_unpaired_captions, files.num_folders) == (4, 1, 1)
    assert found.sizes == {Size(80, 60): 1, Size(60, 90): 1, Size(64, 64): 1}
    assert found.pixels is not None
    assert (found.pixels.highest, found.pixels.highest_at) == (5400, "cat_1.png")
    assert sum(found.aspects.values()) == 3
    assert len(found.aspects) == 17
    assert (found.num_long, found.token_lengths[-1]) == (1, 100)
    assert dict(found.tags)["red"] == 2
    assert sum(found.buckets.values()) == 6  # each image at two resolutions
    assert {"scanning", "counting tokens"} <= set(reports)


def test_prompts_have_captions_and_no_image(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("a red car\na blue house", encoding="utf-8")
    config = Config(concepts=(Concept(path=str(tmp_path / "prompts.txt"), kind="prompts"),))
    preview = ConceptPreview(config, 0)
    seen = preview.use(preview.uses(1)[0])
    assert (seen.pixels, seen.caption, seen.changes) == (None, "a blue house", ())
    found = concept_statistics(config, 0)
    assert (found.num_captions, found.buckets, found.pixels) == (2, {}, None)
