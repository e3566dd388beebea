"""Augmented images in a run: which versions are cached and trained, and that the plan is what happens."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

from modules.config.schema import Config
from modules.data.batch import Batch
from modules.data.plan_table import plan_rows
from modules.data.samples import SampleIndex
from modules.data.versions import ImageVersions
from modules.objectives.denoise import area_weights
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, assert_equal_tensors, run, stop_at
from tests.training.test_cache_reuse import both, built
from trainer.commands import Stop
from trainer.data.datasets import datasets_of
from trainer.data.loader import Loader
from trainer.events import ImagesDropped, StepFinished, WarningRaised

JITTER = {"image": {"crop_jitter": True, "flip": "random", "brightness": "random", "brightness_max": 0.3}}
NUM_IMAGES = 5


@pytest.fixture
def config(tiny_sd: Path, tmp_path: Path) -> Config:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 3 + [(140, 64), (64, 130)], captions=["a disc"])
    return small_config(
        tmp_path, model=tiny_sd, images=images, parts={"text_encoder": {"train": False}}, training={"batch_size": 2}
    )


def with_concept(config: Config, **changes: Any) -> Config:
    return laid_over(config, {"concepts": [{**config.concepts[0].model_dump(), **changes}]})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """The batches of a run, as they are trained."""
    seen: list[Batch] = []
    plain = Loader.batches

    def batches(self: Loader, *arguments: Any, **options: Any) -> Iterator[Batch]:
        for batch in plain(self, *arguments, **options):
            seen.append(batch)
            yield batch

    monkeypatch.setattr(Loader, "batches", batches)
    return seen


def plan_of(ran: Ran) -> list[dict[str, str]]:
    with (Path(ran.finished.backup_path).parents[1] / "plan.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


# -- the cache


def test_each_variation_has_its_entry_and_nothing_else_is_built(config: Config) -> None:
    varied = with_concept(config, image_variations=3, **JITTER)
    counts = built(varied)["images"]
    assert NUM_IMAGES < counts <= 3 * NUM_IMAGES  # two draws of a flip and a brightness are hardly ever the same
    assert built(varied)["images"] == 0
    assert built(laid_over(varied, {"training": {"epochs": 9, "batch_size": 1}})) == both(0, 0)
    fewer = built(with_concept(varied, image_variations=2))
    assert fewer == both(0, 0)
    assert built(with_concept(varied, image_variations=4))["images"] <= NUM_IMAGES


def test_variations_without_random_augmentation_are_one(config: Config) -> None:
    assert built(with_concept(config, image_variations=4, image={"flip": "always"}))["images"] == NUM_IMAGES


def test_an_added_image_leaves_the_draws_of_the_others(config: Config, tmp_path: Path) -> None:
    varied = with_concept(config, **JITTER)
    built(varied)
    draw_folder(tmp_path / "more", sizes=[(64, 64)])
    (tmp_path / "more" / "000.png").rename(tmp_path / "images" / "0000.png")  # the first by name
    assert built(varied)["images"] == 1


def test_the_seed_of_a_concept_decides_its_draws(config: Config) -> None:
    varied = with_concept(config, seed=3, **JITTER)
    built(varied)
    assert built(laid_over(varied, {"general": {"seed": 99}})) == both(0, 0)
    assert built(with_concept(varied, seed=4))["images"] > 0


# -- the run


@pytest.mark.daily(1)
@pytest.mark.parametrize("latent_cache", [True, False])
@pytest.mark.parametrize(
    ("concept", "data"),
    [
        ({}, {}),
        ({**JITTER, "image_variations": 2, "repeats": 1.5}, {"resolution_px": [64, "96x64"]}),
        ({"image": {"resolution_px": [96], "rotate": "always", "rotate_max_degrees": 10}}, {"never_upscale": True}),
    ],
)
def test_the_plan_is_what_is_trained(
    config: Config, trained: list[Batch], concept: dict[str, Any], data: dict[str, Any], latent_cache: bool
) -> None:
    changed = laid_over(with_concept(config, **concept), {"data": {**data, "latent_cache": latent_cache}})
    rows = plan_of(run(changed))
    planned: Counter[tuple[str, str]] = Counter()
    for row in rows:
        planned[row["image"], row["bucket"]] += int(row["samples_epoch_1"])
    happened: Counter[tuple[str, str]] = Counter()
    paths = sorted(str(p) for p in Path(config.concepts[0].path).glob("*.png"))
    for batch in trained:
        height, width = batch.latents_BCHW.shape[-2:]
        for sample, conditioning in zip(batch.sample_indices, batch.size_conditionings, strict=True):
            target = conditioning.target
            assert (target.width_px // 8, target.height_px // 8) in ((width, height), (width * 4, height * 4))
            if batch.epoch == 0:
                happened[paths[sample.example], str(target)] += 1
    assert happened == +planned
    per_epoch = sum(float(r["samples_per_epoch"]) for r in rows)
    assert per_epoch == pytest.approx(NUM_IMAGES * concept.get("repeats", 1), abs=0.01)


@pytest.mark.parametrize(("partial_batches", "epochs"), [("keep", 8), ("keep", 5), ("merge", 5), ("drop", 5)])
@pytest.mark.parametrize(
    ("concept", "data", "entries"),
    [
        ({"image_variations": 2}, {}, 14),
        ({"image_variations": 2, "repeats": 0.5}, {}, 14),
        ({"image_variations": 2}, {"resolution_px": [64, 96]}, 28),
        ({"image_variations": 4, "repeats": 1.5}, {}, 28),
        ({"image_variations": 2, "repeats": 3.0}, {"resolution_px": [64, 96, 128]}, 42),
        ({"image_variations": 2, "balancing": "samples", "samples_per_epoch": 7}, {"resolution_px": [64, 96]}, 28),
    ],
)
def test_every_cached_variation_is_trained_as_often_as_planned(
    config: Config,
    tmp_path: Path,
    concept: dict[str, Any],
    data: dict[str, Any],
    entries: int,
    partial_batches: str,
    epochs: int,
) -> None:
    """Whatever takes turns beside the variations: fractional repeats, resolutions, balanced samples; without drops."""
    images = draw_folder(tmp_path / "seven", sizes=[(64, 64)] * 7)
    data = {**data, "partial_batches": partial_batches}
    datasets = datasets_of(laid_over(with_concept(config, path=str(images), **concept, **JITTER), {"data": data}))
    dataset, plans = datasets.training, datasets.plans
    versions = ImageVersions(dataset, datasets.settings.run_seed, is_cached=True)
    used: Counter[tuple[str, str, int]] = Counter()
    for epoch in range(epochs):
        for sample in (s for group in plans.accumulation_groups(epoch) for batch in group for s in batch):
            version = versions.of(sample)
            used[str(dataset.examples[sample.example].image.path), str(version.recipe.bucket), version.variation] += 1
    rows = {(r.image, r.bucket, r.variation): r for r in plan_rows(dataset, plans, versions, epochs=epochs)}
    assert len(rows) == entries
    assert {place: used[place] / epochs for place in rows} == {p: r.samples_per_epoch for p, r in rows.items()}
    assert used.keys() <= rows.keys()


def test_an_epoch_uses_the_next_variation_and_then_the_first_again(config: Config, trained: list[Batch]) -> None:
    run(laid_over(with_concept(config, image_variations=2, **JITTER), {"training": {"epochs": 3}}))
    first, second, third = ({k: v for b in trained if b.epoch == e for k, v in latents_of(b)} for e in range(3))
    assert_equal_tensors(first, third)
    assert any(not torch.equal(first[k], second[k]) for k in first)


def latents_of(batch: Batch) -> Iterator[tuple[str, torch.Tensor]]:
    for sample, latents in zip(batch.sample_indices, batch.latents_BCHW, strict=True):
        yield str(sample.example), latents.clone()


def test_without_the_cache_each_epoch_is_drawn_anew_whatever_the_threads(config: Config, trained: list[Batch]) -> None:
    uncached = laid_over(with_concept(config, **JITTER), {"data": {"latent_cache": False}, "training": {"epochs": 2}})
    one = run(uncached)
    first, second = ({k: v for b in trained if b.epoch == e for k, v in latents_of(b)} for e in range(2))
    assert any(not torch.equal(first[k], second[k]) for k in first)
    assert_equal_tensors(one.weights, run(laid_over(uncached, {"data": {"loader_threads": 3}})).weights)


@pytest.mark.full
@pytest.mark.parametrize("partial_batches", ["keep", "merge", "drop"])
def test_a_resumed_run_trains_the_same(config: Config, partial_batches: str) -> None:
    changes = {"data": {"partial_batches": partial_batches}, "training": {"epochs": 3}}
    varied = laid_over(with_concept(config, image_variations=2, repeats=1.5, **JITTER), changes)
    whole = run(varied)

    stopped = run(varied, on_event=stop_at(2))
    resumed = run(varied, resume_from=Path(stopped.finished.backup_path))
    assert_equal_tensors(resumed.weights, whole.weights)


@pytest.mark.full
@pytest.mark.parametrize("latent_cache", [True, False])
def test_a_sample_of_a_merged_batch_has_the_draws_of_its_own_epoch(
    config: Config, trained: list[Batch], latent_cache: bool
) -> None:
    """Its augmentation, its caption, caption dropout and whether it ignores its mask: as if it were not merged."""
    draw_masks(config)
    text = {"shuffle_tags": True, "keep_tags_count": 0}
    concept = {**JITTER, "image_variations": 3, "text_variations": 3, "text": text, "repeats": 1.5}
    changes = {
        "data": {"latent_cache": latent_cache, "text_cache": latent_cache, "caption_dropout": 0.3},
        "masks": {"enabled": True, "unmasked_probability": 0.5},
        "training": {"epochs": 4},
    }
    for path in Path(config.concepts[0].path).glob("*.txt"):
        path.write_text("a, b, c, d, e, f", encoding="utf-8")
    varied = laid_over(with_concept(config, **concept), changes)
    run(varied)
    expected = {s: found for batch in trained for s, found in samples_of(batch)}
    trained.clear()
    run(laid_over(varied, {"data": {"partial_batches": "merge"}}))
    late = [s for batch in trained for s in batch.sample_indices if s.epoch != batch.epoch]
    assert len(late) > 3
    for batch in trained:
        for sample, (caption, latents, mask) in samples_of(batch):
            assert caption == expected[sample][0]
            torch.testing.assert_close(latents, expected[sample][1])
            assert torch.equal(mask, expected[sample][2])


def samples_of(batch: Batch) -> Iterator[tuple[SampleIndex, tuple[str, torch.Tensor, torch.Tensor]]]:
    assert batch.masks_B1HW is not None
    values = zip(batch.captions, batch.latents_BCHW.clone(), batch.masks_B1HW.clone(), strict=True)
    yield from zip(batch.sample_indices, values, strict=True)


def test_the_crop_position_is_that_of_the_image_as_trained(config: Config, trained: list[Batch]) -> None:
    """After jitter, and for a flipped image from the other edge (SDXL's size conditioning)."""
    image = {"crop_jitter": True, "flip": "always"}
    rows = plan_of(run(laid_over(with_concept(config, image=image), {"training": {"epochs": 1}})))
    by_name = {Path(r["image"]).name: r for r in rows}
    corners = {}
    for batch in trained:
        for sample, seen in zip(batch.sample_indices, batch.size_conditionings, strict=True):
            row = by_name[f"{sample.example:03d}.png"]
            assert str(seen.original) == row["size"]
            scaled_px = round(seen.original.width_px * float(row["scale"]))
            assert seen.crop_left_px == pytest.approx(scaled_px - float(row["crop_right"]) * float(row["scale"]), abs=1)
            assert seen.crop_top_px == pytest.approx(float(row["crop_top"]) * float(row["scale"]), abs=1)
            corners[sample.example] = seen.crop_left_px, seen.crop_top_px
    assert corners[0] == (0, 0)
    assert any(corner != (0, 0) for corner in corners.values())


# -- masks


def draw_masks(config: Config) -> None:
    for path in sorted(Path(config.concepts[0].path).glob("0*.png"))[:4]:
        with Image.open(path) as image:
            mask = Image.new("L", image.size)
            ImageDraw.Draw(mask).rectangle((0, 0, image.width // 2 - 1, image.height), fill=255)
        mask.save(path.with_name(f"{path.stem}-masklabel.png"))


def test_masks_arrive_at_the_size_of_the_latents(config: Config, trained: list[Batch]) -> None:
    draw_masks(config)
    masked = with_concept(config, image={"flip": "always"})
    run(laid_over(masked, {"masks": {"enabled": True, "unmasked_weight": 0.25}, "training": {"epochs": 1}}))
    seen = 0
    for batch in trained:
        assert batch.masks_B1HW is not None
        assert batch.area_weights_B1HW is not None
        assert batch.masks_B1HW.shape == (batch.num_samples, 1, *batch.latents_BCHW.shape[-2:])
        for sample, mask, weights in zip(batch.sample_indices, batch.masks_B1HW, batch.area_weights_B1HW, strict=True):
            half = mask.shape[-1] // 2
            if sample.example == 4:  # it has none
                assert (mask == 1).all()
                continue
            seen += 1
            assert (mask[..., half + 1 :] == 1).all()  # mirrored with its image
            assert (mask[..., : half - 1] == 0).all()
            assert torch.equal(weights, mask.clamp(min=0.25))
    assert seen == 4


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"unmasked_weight": 0.7},
        {"normalize_area_loss": True},
        {"unmasked_probability": 0.6},
        {"prior_preservation_weight": 4.0},
    ],
)
def test_masked_training_changes_the_result(config: Config, settings: dict[str, Any]) -> None:
    draw_masks(config)
    plain = run(config).weights
    masked = run(laid_over(config, {"masks": {"enabled": True, **settings}})).weights
    assert any(not torch.equal(plain[n], masked[n]) for n in plain)
    if settings:
        default = run(laid_over(config, {"masks": {"enabled": True}})).weights
        assert any(not torch.equal(default[n], masked[n]) for n in plain)


def test_white_masks_change_nothing(config: Config) -> None:
    plain = run(config).weights
    Image.new("L", (64, 64), 255).save(Path(config.concepts[0].path) / "000-masklabel.png")
    assert_equal_tensors(
        run(laid_over(config, {"masks": {"enabled": True, "normalize_area_loss": True}})).weights, plain
    )


def test_area_weights_by_hand() -> None:
    masks = torch.tensor([[[[1.0, 0.0], [0.5, 0.0]]], [[[0.0, 0.0], [0.0, 0.0]]]])
    plain = area_weights(masks, unmasked_weight=0.1, normalises=False)
    assert plain.tolist() == [
        [[[1.0, pytest.approx(0.1)], [0.5, pytest.approx(0.1)]]],
        [[[pytest.approx(0.1)] * 2] * 2],
    ]
    normalised = area_weights(masks, unmasked_weight=0.1, normalises=True)
    assert normalised.mean(dim=(1, 2, 3)).tolist() == pytest.approx([1, 1])
    assert area_weights(masks, unmasked_weight=0.0, normalises=True)[1].eq(0).all()


@pytest.mark.parametrize("source", ["folder", "alpha"])
def test_masks_from_a_folder_and_from_alpha(config: Config, tmp_path: Path, trained: list[Batch], source: str) -> None:
    masks = tmp_path / "masks"
    masks.mkdir()
    for path in sorted(Path(config.concepts[0].path).glob("0*.png")):
        with Image.open(path) as image:
            image = image.convert("RGB")
        mask = Image.new("L", image.size)
        ImageDraw.Draw(mask).rectangle((0, 0, image.width, image.height // 2 - 1), fill=255)
        mask.save(masks / path.name)
        image.putalpha(mask)
        if source == "alpha":
            image.save(path)
    changed = with_concept(config, image={"mask_source": source, "masks_folder": str(masks)})
    run(laid_over(changed, {"masks": {"enabled": True}, "training": {"epochs": 1}}))
    for batch in trained:
        assert batch.masks_B1HW is not None
        assert batch.masks_B1HW.mean().item() == pytest.approx(0.5, abs=0.13)
        assert (batch.masks_B1HW[..., 0, :] == 1).all()


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("concept", "settings"),
    [
        ({}, {"data": {"min_side_px": 60, "resolution_px": [96]}}),
        ({}, {"data": {"never_upscale": True, "resolution_px": [96]}}),
        ({"image": {"circular_mask_shrink": True}}, {"masks": {"enabled": True}, "data": {"resolution_px": [96]}}),
        ({"image": {"mask_rotate_crop": True}}, {"data": {"resolution_px": [96]}}),
    ],
)
def test_each_setting_changes_the_run(config: Config, concept: dict[str, Any], settings: dict[str, Any]) -> None:
    draw_masks(config)
    draw_folder(Path(config.concepts[0].path) / "small", sizes=[(50, 40)])
    start = with_concept(laid_over(config, {"data": {"resolution_px": [96]}}), include_subfolders=True)
    before = run(laid_over(start, {"masks": settings.get("masks", {})})).weights
    after = run(laid_over(with_concept(start, **concept), settings)).weights
    assert any(not torch.equal(before[n], after[n]) for n in before)


def test_small_images_are_reported_and_never_upscaled(config: Config) -> None:
    draw_folder(Path(config.concepts[0].path) / "small", sizes=[(50, 40), (20, 12)])
    start = with_concept(laid_over(config, {"data": {"resolution_px": [96]}}), include_subfolders=True)
    ran = run(laid_over(start, {"data": {"never_upscale": True}}))
    assert max(float(row["scale"]) for row in plan_of(ran)) <= 1
    assert any("001.png: too small for a bucket without upscaling" in w.message for w in ran.of(WarningRaised))
    ran = run(laid_over(start, {"data": {"min_side_px": 41}}))
    assert len(plan_of(ran)) == NUM_IMAGES
    assert any("2 files are skipped (000.png: smaller than the minimum" in w.message
               for w in ran.of(WarningRaised))  # fmt: skip


@pytest.mark.parametrize("image", [{}, {"rotate": "random"}, {"rotate": "always"}, {"mask_rotate_crop": True}])
def test_never_upscaled_beside_rotation_and_mask_crop(config: Config, image: dict[str, Any]) -> None:
    draw_masks(config)
    draw_folder(Path(config.concepts[0].path) / "small", sizes=[(70, 60), (200, 60)])
    turned = with_concept(
        config, include_subfolders=True, image={**image, "rotate_max_degrees": 45}, image_variations=9
    )
    datasets = datasets_of(laid_over(turned, {"data": {"never_upscale": True, "resolution_px": [64, 96]}}))
    versions = ImageVersions(datasets.training, datasets.settings.run_seed, is_cached=True)
    rows = plan_rows(datasets.training, datasets.plans, versions, epochs=1)
    assert len({r.image for r in rows}) == NUM_IMAGES + 2
    assert max(r.scale for r in rows) <= 1


def test_dropped_images_are_named(config: Config) -> None:
    ran = run(laid_over(config, {"data": {"partial_batches": "drop"}}))
    warnings = [w.message for w in ran.of(WarningRaised)]
    assert any("2 images are never trained: 003.png, 004.png" in w for w in warnings), warnings
    assert {Path(r["image"]).name for r in plan_of(ran) if r["samples_epoch_1"] == "0"} >= {"003.png", "004.png"}


@pytest.mark.full
@pytest.mark.parametrize("partial_batches", ["keep", "merge", "drop"])
def test_the_dropped_images_of_every_epoch_are_named(
    config: Config, trained: list[Batch], tmp_path: Path, partial_batches: str
) -> None:
    """Also of a resumed run, whose file has the epochs before it; merged ones are dropped in the last epoch only."""
    draw_folder(tmp_path / "images" / "more", sizes=[(64, 64)] * 4)
    changes = {"data": {"partial_batches": partial_batches}, "training": {"epochs": 3, "batch_size": 4}}
    dropping = laid_over(with_concept(config, include_subfolders=True), changes)
    whole = run(dropping)
    sizes = {r["image"]: r["bucket"] for r in plan_of(whole)}
    every = sorted(sizes)
    expected: dict[int, set[str]] = {}
    for epoch in {"keep": [], "merge": [2], "drop": [0, 1, 2]}[partial_batches]:
        done = Counter(s.example for b in trained if b.epoch <= epoch for s in b.sample_indices)
        before = {s.example for b in trained if b.epoch == epoch for s in b.sample_indices}
        dropped = [n for n in range(9) if (done[n] <= epoch if partial_batches == "merge" else n not in before)]
        expected[epoch + 1] = {every[n] for n in dropped}
    events = whole.of(ImagesDropped)
    assert {e.epoch: sorted(e.names) for e in events} == {
        n: sorted(Path(p).name for p in f) for n, f in expected.items()
    }
    assert all(e.num_images == len(e.names) for e in events)
    rows = dropped_in(whole)
    assert {n: {r["image"] for r in rows if int(r["epoch"]) == n} for n in expected} == expected
    assert all(r["bucket"] == sizes[r["image"]] for r in rows)

    def stop(event: Any, send: Any) -> None:
        if isinstance(event, StepFinished) and event.epoch == 2:
            send(Stop())

    stopped = run(dropping, on_event=stop)
    assert dropped_in(run(dropping, resume_from=Path(stopped.finished.backup_path))) == rows


def dropped_in(ran: Ran) -> list[dict[str, str]]:
    path = Path(ran.finished.backup_path).parents[1] / "dropped.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
