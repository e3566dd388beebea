"""Masks in a run: what is drawn, cached and trained, and the original model's prediction outside of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from modules.config.schema import Config
from modules.data.batch import Batch
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.events import CacheProgress, StepFinished, ValidationFinished, WarningRaised
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepContext, StepLoss
from trainer.run.prune import unused_by

NUM_MASKS = 3
MASKED: dict[str, Any] = {"masks": {"enabled": True, "unmasked_weight": 0.2}}
STANDING: dict[str, Any] = {"training": {"learning_rate": 1e-30}}  # no weight moves


@pytest.fixture
def config(tiny_sd: Path, tmp_path: Path) -> Config:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 4, captions=["a disc"])
    for number in range(NUM_MASKS):
        mask = Image.new("L", (64, 64))
        ImageDraw.Draw(mask).rectangle((0, 0, 15, 7), fill=255)  # two latents in the top left corner
        name = PngInfo()
        name.add_text("Title", str(number))  # equal files share an entry of the cache
        mask.save(images / f"{number:03}-masklabel.png", pnginfo=name)
    return small_config(tmp_path, model=tiny_sd, images=images, training={"epochs": 1})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Batch, float]]:
    """The batches of a run with their losses, as they are trained."""
    seen: list[tuple[Batch, float]] = []
    plain = Denoise.loss

    def loss(self: Denoise, batch: Batch, context: StepContext) -> StepLoss:
        found = plain(self, batch, context)
        seen.append((batch, found.loss.item()))
        return found

    monkeypatch.setattr(Denoise, "loss", loss)
    return seen


def of_epochs(trained: list[tuple[Batch, float]]) -> list[tuple[Batch, float]]:
    """Without the first batch, which is that of the dry run."""
    return trained[1:]


def masks_of(trained: list[tuple[Batch, float]]) -> dict[tuple[int, int], torch.Tensor]:
    """The masks by epoch and example."""
    return {
        (batch.epoch, sample.example): mask
        for batch, _ in of_epochs(trained)
        for sample, mask in zip(batch.sample_indices, batch.masks_B1HW, strict=True)  # type: ignore[arg-type]
    }


@pytest.mark.parametrize(
    ("image", "corner"),
    [({}, (slice(0, 1), slice(0, 2))), ({"flip": "always"}, (slice(0, 1), slice(-2, None)))],
)
@pytest.mark.parametrize("latent_cache", [True, False])
def test_a_marked_corner_arrives_at_its_latents(
    config: Config, trained: list[Any], image: dict[str, Any], corner: tuple[slice, slice], latent_cache: bool
) -> None:
    concepts = [{**config.concepts[0].model_dump(), "image": image}]
    run(laid_over(config, {**MASKED, "concepts": concepts, "data": {"latent_cache": latent_cache}}))
    masks = masks_of(trained)
    for number in range(NUM_MASKS):
        expected = torch.zeros(1, *trained[0][0].latents_BCHW.shape[-2:])
        size = 64 // expected.shape[-1]
        rows, columns = (slice(s.start * 8 // size, s.stop and s.stop * 8 // size) for s in corner)
        expected[:, rows, columns] = 1
        assert torch.equal(masks[0, number], expected)
    assert bool((masks[0, NUM_MASKS] == 1).all())


# -- the cache


def masks_built(ran: Ran) -> int:
    return sum(p.what == "masks" for p in ran.of(CacheProgress))


def test_exactly_the_changed_masks_are_cached_again(config: Config) -> None:
    masked = laid_over(config, MASKED)
    first = run(masked)
    assert masks_built(first) == NUM_MASKS
    others = {"masks": {"unmasked_weight": 0.7, "normalize_area_loss": True, "unmasked_probability": 0.5}}
    assert masks_built(run(laid_over(masked, others))) == 0
    assert masks_built(run(laid_over(masked, {"parts": {"vae": {"dtype": "bfloat16"}}}))) == 0
    assert masks_built(run(laid_over(masked, {"data": {"resolution_px": [96]}}))) == NUM_MASKS
    shrunk = [{**config.concepts[0].model_dump(), "image": {"circular_mask_shrink": True}}]
    assert masks_built(run(laid_over(masked, {"concepts": shrunk}))) == NUM_MASKS
    Image.new("L", (64, 64), 90).save(Path(config.concepts[0].path) / "001-masklabel.png")
    assert masks_built(changed := run(masked)) == 1
    assert any(not torch.equal(first.weights[n], changed.weights[n]) for n in first.weights)


def test_a_damaged_entry_is_read_again_with_a_warning(config: Config, tmp_path: Path) -> None:
    masked = laid_over(config, MASKED)
    whole = run(masked)
    for entry in sorted((tmp_path / "cache" / "masks").glob("*/*.safetensors"))[:1]:
        entry.write_bytes(entry.read_bytes()[:-3])
    again = run(masked)
    assert_equal_tensors(again.weights, whole.weights)
    assert any("cache entry of a mask was damaged" in w.message for w in again.of(WarningRaised))


# -- unmasked probability


def test_with_a_probability_of_1_masks_are_ignored(config: Config) -> None:
    always = laid_over(config, {"masks": {"enabled": True, "unmasked_probability": 1.0}})
    assert_equal_tensors(run(always).weights, run(config).weights)


@pytest.mark.full
def test_each_use_of_an_image_draws_anew_whether_its_mask_is_ignored(config: Config, trained: list[Any]) -> None:
    half = {"masks": {"enabled": True, "unmasked_probability": 0.5}, "training": {"epochs": 10}}
    run(laid_over(config, half))
    masks = {place: mask for place, mask in masks_of(trained).items() if place[1] < NUM_MASKS}
    ignored = {place for place, mask in masks.items() if bool((mask == 1).all())}
    assert 0.25 < len(ignored) / len(masks) < 0.75
    assert {n for _, n in ignored} == set(range(NUM_MASKS)) == {n for _, n in masks.keys() - ignored}
    first = [loss for _, loss in trained]
    trained.clear()
    run(laid_over(config, {**half, "data": {"loader_threads": 3}}))
    assert [loss for _, loss in trained] == first


# -- the loss


def test_the_loss_of_a_run_is_the_formula(config: Config, trained: list[Any]) -> None:
    """Weights that differ only in the places outside of the mask: the loss is linear in the unmasked weight."""
    losses = []
    for weight in (0.0, 0.5, 1.0):
        trained.clear()
        run(laid_over(config, {**STANDING, "masks": {"enabled": True, "unmasked_weight": weight}}))
        losses.append([loss for _, loss in trained])
    low, middle, high = (torch.tensor(found) for found in losses)
    assert bool((low < middle).all())
    torch.testing.assert_close(middle, (low + high) / 2)
    trained.clear()
    run(laid_over(config, STANDING))
    torch.testing.assert_close(high, torch.tensor([loss for _, loss in trained]))


@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_what_a_black_mask_leaves_is_the_prior(config: Config, trained: list[Any], trains: str) -> None:
    """An untrained model is its own prior: outside of the mask the loss is exactly 0."""
    for path in Path(config.concepts[0].path).glob("*.png"):
        Image.new("L", (64, 64)).save(path.with_name(f"{path.stem.removesuffix('-masklabel')}-masklabel.png"))
    masks = {"enabled": True, "unmasked_weight": 0.0, "prior_preservation_weight": 3.0}
    run(laid_over(config, {"masks": masks, "training": {"trains": trains, "learning_rate": 1e-30, "epochs": 1}}))
    assert {loss for _, loss in trained} == {0.0}


@pytest.mark.full
@pytest.mark.parametrize("normalises", [False, True])
def test_prior_preservation_changes_the_run(config: Config, normalises: bool) -> None:
    def weights(preservation: float) -> dict[str, torch.Tensor]:
        masks = {"normalize_area_loss": normalises, "prior_preservation_weight": preservation}
        changed = laid_over(laid_over(config, MASKED), {"masks": masks, "training": {"learning_rate": 0.01}})
        return run(laid_over(changed, {"training": {"epochs": 3}})).weights

    plain, weak, strong = weights(0.0), weights(1.0), weights(20.0)
    assert any(not torch.equal(plain[n], weak[n]) for n in plain)
    assert any(not torch.equal(weak[n], strong[n]) for n in plain)


@pytest.mark.full
def test_validation_ignores_masks_and_its_weighted_loss_uses_them(config: Config) -> None:
    concepts = [config.concepts[0].model_dump(), {"path": config.concepts[0].path, "kind": "validation"}]
    validated = laid_over(config, {"concepts": concepts, "validation": {"every": {"n": 1, "unit": "epoch"}}})
    masks = {"enabled": True, "unmasked_probability": 1.0, "prior_preservation_weight": 5.0}
    plain, masked = (run(laid_over(validated, changes)).of(ValidationFinished)[0] for changes in ({}, {"masks": masks}))
    assert masked.loss == plain.loss
    assert masked.weighted_loss is not None
    assert masked.weighted_loss < masked.loss


def test_a_mask_that_cannot_be_decoded_is_named(config: Config) -> None:
    mask = Path(config.concepts[0].path) / "001-masklabel.png"
    mask.write_bytes(mask.read_bytes()[:60])
    ran = run(laid_over(config, MASKED))
    told = [w.message for w in ran.of(WarningRaised)] + [getattr(ran.ending, "message", "")]
    assert any("001" in message for message in told), told
    assert ran.of(StepFinished) == [] or all("001.png" not in m for m in told if "trained" in m)


def test_pruning_removes_masks_that_are_no_longer_used(config: Config) -> None:
    masked = laid_over(config, MASKED)
    run(masked)
    assert unused_by([masked]).entries == ()
    Image.new("L", (64, 64), 90).save(Path(config.concepts[0].path) / "001-masklabel.png")
    run(masked)
    assert [kind for kind, _ in unused_by([masked]).entries] == ["masks"]
    without = unused_by([config])
    assert sorted(kind for kind, _ in without.entries) == ["masks"] * (NUM_MASKS + 1)
