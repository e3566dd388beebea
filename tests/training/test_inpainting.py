"""The inputs of inpainting models, up to the batch: a toy family asks for them, whose latents are the pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from torch.nn.functional import max_pool2d

from modules.config.rules import RULES
from modules.config.schema import Config
from modules.data.batch import Batch
from modules.data.input_names import INPAINTING
from modules.families.registry import registered
from tests.builders.budgets import budget_of_run
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, run
from tests.builders.toy_family.build import write_toy_folder
from tests.builders.toy_family.spec import TOY
from trainer.events import CacheProgress, WarningRaised
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepContext, StepLoss
from trainer.preflight import check
from trainer.preflight.budget import disk_need
from trainer.preflight.estimates import cached_sizes_of, sizes_of
from trainer.run.prune import unused_by

SIZE = 32
MASKED, CUSTOM, PLAIN = range(3)  # the images: with a mask, with a conditioning image, with neither
CORNER = (slice(0, 8), slice(0, 16))  # rows and columns
CUSTOM_ON: dict[str, Any] = {"masks": {"custom_conditioning_image": True}}


@pytest.fixture(scope="module", autouse=True)
def toy() -> Iterator[None]:
    with registered(replace(TOY, inputs={"text_to_image": INPAINTING})):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return write_toy_folder(tmp_path_factory.mktemp("models") / "toy-pixel")


@pytest.fixture
def config(model: Path, tmp_path: Path) -> Config:
    images = draw_folder(tmp_path / "images", sizes=[(SIZE, SIZE)] * 3, captions=["a disc"])
    marked(images / f"{MASKED:03}-masklabel.png", 255)
    marked(images / f"{CUSTOM:03}-condlabel.png", 200)
    small = small_config(tmp_path, model=model, images=images)
    return laid_over(
        small,
        {
            "data": {"resolution_px": [SIZE], "bucket_step_px": 8},
            "training": {"epochs": 2, "batch_size": 3},
            "parts": {"text_encoder": {"train": False}},
            "output": {"dtype": "float32"},
        },
    )


def marked(path: Path, value: int) -> None:
    """Write an image that is black but for its top left corner."""
    mask = Image.new("L", (SIZE, SIZE))
    ImageDraw.Draw(mask).rectangle((0, 0, CORNER[1].stop - 1, CORNER[0].stop - 1), fill=value)
    mask.save(path)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """The batches of a run, as they are trained."""
    seen: list[Batch] = []
    plain = Denoise.loss

    def loss(self: Denoise, batch: Batch, context: StepContext) -> StepLoss:
        seen.append(batch)
        return plain(self, batch, context)

    monkeypatch.setattr(Denoise, "loss", loss)
    return seen


def images_of(trained: list[Batch]) -> dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The image, its inpainting mask and its conditioning image by epoch and example, without the dry run."""
    found = {}
    for batch in trained[1:]:
        assert set(batch.inputs) == set(INPAINTING)
        rows = zip(
            batch.sample_indices,
            batch.latents_BCHW,
            batch.inputs["mask"],
            batch.inputs["masked_image"],
            strict=True,
        )
        found |= {(batch.epoch, sample.example): parts for sample, *parts in rows}
    return found  # type: ignore[return-value]


def encoded(ran: Ran) -> int:
    return sum(p.what == "conditioning images" for p in ran.of(CacheProgress))


def with_image(config: Config, **image: Any) -> Config:
    return laid_over(config, {"concepts": [{**config.concepts[0].model_dump(), "image": image}]})


@pytest.mark.parametrize("latent_cache", [True, False])
@pytest.mark.parametrize("flip", ["off", "always"])
def test_a_marked_corner_is_aligned_in_all_three(
    config: Config, trained: list[Batch], flip: str, latent_cache: bool
) -> None:
    changed = with_image(laid_over(config, {**CUSTOM_ON, "data": {"latent_cache": latent_cache}}), flip=flip)
    run(changed)
    corner = torch.zeros(1, SIZE, SIZE)
    corner[:, *CORNER] = 1
    corner = corner.flip(-1) if flip == "always" else corner
    for (_, example), (image, mask, conditioning) in images_of(trained).items():
        assert bool(((mask == 0) | (mask == 1)).all())
        if example == CUSTOM:
            value = torch.tensor(200 / 127.5 - 1)
            assert torch.equal(conditioning, torch.where(corner == 1, value, torch.tensor(-1.0)).expand(3, -1, -1))
            continue
        if example == MASKED:
            assert torch.equal(mask, corner)
        assert torch.equal(conditioning, image * (1 - mask)), "mid-gray is 0"


def test_the_loss_of_an_inpainting_model_counts_everywhere(config: Config, trained: list[Batch]) -> None:
    """As in OneTrainer: its masks are what it inpaints."""
    run(laid_over(config, {"masks": {"enabled": True, "prior_preservation_weight": 0.5}}))
    assert all(b.area_weights_B1HW is None and b.prior_weights_B1HW is None for b in trained)


def test_without_the_setting_conditioning_images_are_not_read(config: Config, trained: list[Batch]) -> None:
    run(config)
    image, mask, conditioning = images_of(trained)[0, CUSTOM]
    assert torch.equal(conditioning, image * (1 - mask))


def test_everything_arrives_in_the_dtype_of_the_latents(config: Config, trained: list[Batch]) -> None:
    run(laid_over(config, {"training": {"precision": "bfloat16", "epochs": 1}}))
    for batch in trained:
        assert batch.inputs["mask"].dtype == batch.inputs["masked_image"].dtype == batch.latents_BCHW.dtype


@pytest.mark.full
def test_an_image_without_a_mask_has_a_random_one_for_each_version(config: Config, trained: list[Batch]) -> None:
    """Nothing but the mask differs between the versions: they share the latents of the image."""

    def masks(changes: dict[str, Any]) -> list[torch.Tensor]:
        trained.clear()
        run(laid_over(config, changes))
        return [mask for (_, example), (_, mask, _) in sorted(images_of(trained).items()) if example == PLAIN]

    epochs = {"training": {"epochs": 6}}
    several = {"concepts": [{**config.concepts[0].model_dump(), "image_variations": 3}]}
    one, two, fresh = masks(epochs), masks({**epochs, **several}), masks({**epochs, "data": {"latent_cache": False}})
    assert len({m.numpy().tobytes() for m in one}) == 1
    assert len({m.numpy().tobytes() for m in two}) == 3
    assert [torch.equal(a, b) for a, b in zip(two[:3], two[3:], strict=True)] == [True] * 3
    assert len({m.numpy().tobytes() for m in fresh}) > 3
    again = masks({**epochs, "data": {"latent_cache": False, "loader_threads": 3}})
    assert all(torch.equal(a, b) for a, b in zip(fresh, again, strict=True))
    assert not torch.equal(masks({**epochs, "general": {"seed": 5}})[0], one[0])


@pytest.mark.parametrize("latent_cache", [True, False])
def test_a_use_that_ignores_its_mask_is_inpainted_everywhere(
    config: Config, trained: list[Batch], latent_cache: bool
) -> None:
    half = {"unmasked_probability": 0.5}
    run(laid_over(config, {"masks": half, "training": {"epochs": 8}, "data": {"latent_cache": latent_cache}}))
    num_ignored = 0
    for batch in trained[1:]:
        for row, sample in enumerate(batch.sample_indices):
            if sample.example == MASKED:
                is_ignored = bool((batch.inputs["mask"][row] == 1).all())
                num_ignored += is_ignored
                assert bool((batch.inputs["masked_image"][row] == 0).all()) == is_ignored
    assert 0 < num_ignored < 8


# -- the cache


@pytest.mark.full
def test_exactly_the_changed_conditioning_images_are_encoded_again(config: Config) -> None:
    folder = Path(config.concepts[0].path)
    custom = laid_over(config, CUSTOM_ON)
    first = run(custom)
    assert encoded(first) == 3
    others = {"training": {"learning_rate": 0.5}, "data": {"caption_dropout": 0.5, "loader_threads": 2}}
    assert encoded(run(laid_over(custom, others))) == 0
    assert encoded(run(config)) == 1  # the masked one of the image with a conditioning image
    marked(folder / f"{CUSTOM:03}-condlabel.png", 150)
    assert encoded(run(custom)) == 1
    marked(folder / f"{MASKED:03}-masklabel.png", 240)
    assert encoded(run(custom)) == 1
    assert encoded(run(laid_over(custom, {"general": {"seed": 5}}))) == 1  # the one with a random mask
    assert encoded(run(with_image(custom, flip="always"))) == 3
    assert encoded(run(with_image(custom, brightness="always", brightness_max=0.2))) == 2  # not the custom one
    shrunk = run(with_image(custom, circular_mask_shrink=True))
    assert encoded(shrunk) == 1


def test_pruning_knows_the_conditioning_images(config: Config) -> None:
    custom = laid_over(config, CUSTOM_ON)
    ignoring = laid_over(custom, {"masks": {"unmasked_probability": 0.5}})
    run(ignoring)
    assert unused_by([ignoring]).entries == ()
    assert [kind for kind, _ in unused_by([custom]).entries] == ["latents"]  # the blank one
    marked(Path(config.concepts[0].path) / f"{CUSTOM:03}-condlabel.png", 150)
    assert len(unused_by([ignoring]).entries) == 1


def test_a_damaged_entry_is_encoded_again(config: Config, trained: list[Batch], tmp_path: Path) -> None:
    def conditioning() -> list[torch.Tensor]:
        trained.clear()
        ran = run(laid_over(config, CUSTOM_ON))
        damaged.append(sum("was damaged" in w.message for w in ran.of(WarningRaised)))
        return [parts[2] for _, parts in sorted(images_of(trained).items())]

    damaged: list[int] = []
    whole = conditioning()
    entries = [*(tmp_path / "cache").glob("latents/*/*.safetensors"), *(tmp_path / "cache").glob("masks/*/*")]
    assert len(entries) == 7
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-3])
    assert all(torch.equal(a, b) for a, b in zip(conditioning(), whole, strict=True))
    assert damaged == [0, 7]


@pytest.mark.parametrize("latent_cache", [True, False])
def test_a_conditioning_image_that_cannot_be_decoded_is_named(config: Config, latent_cache: bool) -> None:
    file = Path(config.concepts[0].path) / f"{CUSTOM:03}-condlabel.png"
    Image.effect_noise((SIZE, SIZE), 90).save(file)
    file.write_bytes(file.read_bytes()[:400])
    ran = run(laid_over(config, {**CUSTOM_ON, "data": {"latent_cache": latent_cache}}))
    told = [w.message for w in ran.of(WarningRaised)] + [getattr(ran.ending, "message", "")]
    assert any(file.name in message for message in told), told


# -- before the run


def test_preflight_counts_the_conditioning_images(config: Config) -> None:
    folder = Path(config.concepts[0].path)

    def found() -> list[tuple[str, str]]:
        report = check(laid_over(config, CUSTOM_ON))
        return [(p.severity, p.message) for p in report.problems if p.path == "masks.custom_conditioning_image"]

    assert [m.partition(" images")[0] for _, m in found()] == ["2 of 3"]
    Image.new("L", (SIZE, 8)).save(folder / f"{CUSTOM:03}-condlabel.png")
    assert ("warning", "aspect ratio") in [(s, "aspect ratio") for s, m in found() if "aspect ratio" in m]
    (folder / f"{CUSTOM:03}-condlabel.png").unlink()
    [(severity, message)] = found()
    assert (severity, "none of the 3 images has one" in message) == ("warning", True)
    for number in (CUSTOM, PLAIN):
        Image.new("L", (SIZE, SIZE)).save(folder / f"{number:03}-condlabel.png")
    [(_, message)] = found()
    assert message.startswith("1 of 3 images has no conditioning image and is trained with itself")


def test_the_disk_space_includes_them(config: Config, tmp_path: Path) -> None:
    datasets = check(config).datasets
    assert datasets is not None
    need = disk_need(
        budget_of_run(config, sizes_of(datasets.training, datasets.validation)),
        cached_sizes_of(datasets.training, datasets.validation),
        num_captions=1,
    )
    assert need is not None
    run(config)
    stored = sum(f.stat().st_size for f in (tmp_path / "cache" / "latents").glob("*/*"))
    assert stored <= need.latents_bytes <= 2 * stored


def test_other_models_are_told_that_it_has_no_effect(config: Config) -> None:
    def problems(changes: dict[str, Any]) -> list[str]:
        changed = laid_over(config, changes)
        return [p.message for rule in RULES for p in rule(changed) if p.path == "masks.custom_conditioning_image"]

    assert problems(CUSTOM_ON) == []
    [message] = problems({**CUSTOM_ON, "model": {"family": "sd"}})
    assert "no effect" in message
    assert problems({**CUSTOM_ON, "model": {"family": "sd", "variant": "inpainting"}}) == []


def test_the_conditioning_image_hides_every_masked_pixel(config: Config, trained: list[Batch]) -> None:
    """A mask of gray values: what is at least half white is removed, and inpainted."""
    gradient = Image.linear_gradient("L").resize((SIZE, SIZE))
    gradient.save(Path(config.concepts[0].path) / f"{MASKED:03}-masklabel.png")
    run(config)
    _, mask, conditioning = images_of(trained)[0, MASKED]
    seen = conditioning.abs().amax(0, keepdim=True) > 0
    assert not bool((seen & (mask == 1)).any())
    assert bool((max_pool2d(mask, 3, 1, 1) - mask).sum() == SIZE)  # one straight edge
    assert 0.4 < float(mask.mean()) < 0.6
