"""A further input of a model is one declaration: it arrives in `predict` by its name, from a file in the concept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.loop_speed import run_setup
from modules.config.schema import Config
from modules.data.batch import Batch
from modules.data.buckets import Size, resize_crop_for
from modules.data.cache.inputs import BLANK, KnownKeys, reader_of
from modules.data.companions import Companion
from modules.data.conditioning import SizeConditioning
from modules.data.example import Example
from modules.data.inputs import INPUTS, ModelInput
from modules.data.source_image import SourceImage
from modules.data.transforms.recipe import plain_recipe
from modules.data.versions import ImageVersion
from modules.families.registry import registered
from modules.memory.guard import DeviceGuard
from modules.system.ranks import Rank
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import assert_equal_tensors, run
from tests.builders.toy_family.build import write_toy_folder
from tests.builders.toy_family.forward import ToyPixel
from tests.builders.toy_family.spec import TOY
from trainer.events import CacheProgress
from trainer.run.prune import unused_by
from trainer.run.training_run import prepare
from trainer.step.precision import process_settings

SIZE, NUM_IMAGES, WITHOUT = 32, 5, 3
REFERENCE = ModelInput("reference", "Reference image", suffix="-reference")
"""The whole declaration; the family names it."""


@pytest.fixture(scope="module", autouse=True)
def declared() -> Iterator[None]:
    INPUTS[REFERENCE.name] = REFERENCE
    with registered(replace(TOY, inputs={"text_to_image": (REFERENCE.name,)})):
        yield
    del INPUTS[REFERENCE.name]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return write_toy_folder(tmp_path_factory.mktemp("models") / "toy-pixel")


@pytest.fixture
def config(model: Path, tmp_path: Path) -> Config:
    """Images whose reference images rise from black on the left to a brightness of their own on the right."""
    images = draw_folder(tmp_path / "images", sizes=[(SIZE, SIZE)] * NUM_IMAGES, captions=["a disc"])
    for number in set(range(NUM_IMAGES)) - {WITHOUT}:
        Image.fromarray(rising(number)).save(images / f"{number:03}-reference.png")
    small = small_config(tmp_path, model=model, images=images)
    return laid_over(
        small,
        {
            "concepts": [{**small.concepts[0].model_dump(), "image_variations": 2, "image": {"flip": "random"}}],
            "data": {"resolution_px": [SIZE], "bucket_step_px": 8},
            "training": {"epochs": 2, "batch_size": 2, "accumulation_steps": 2},
            "parts": {"text_encoder": {"train": False}},
        },
    )


def rising(number: int) -> np.ndarray:
    return np.tile(np.linspace(0, 40 * number + 60, SIZE).astype(np.uint8), (SIZE, 1))


def delivered(config: Config, epoch: int = 0, **changes: Any) -> list[Batch]:
    run = prepare(run_setup(config))
    try:
        assert len(run.training.loader.dataset.examples) == NUM_IMAGES, "reference images are no training images"
        return list(replace(run.training.loader, **changes).batches(epoch, first_epoch_step=0, step=0))
    finally:
        run.close()


@pytest.mark.daily(1)
@pytest.mark.parametrize("latent_cache", [True, False])
def test_it_arrives_in_predict_by_its_name(config: Config, monkeypatch: pytest.MonkeyPatch, latent_cache: bool) -> None:
    """Each row is the reference of its image, with the same flip; an image without one gets mid-gray."""
    seen: list[Mapping[str, torch.Tensor]] = []
    plain = ToyPixel.predict

    def predict(self: ToyPixel, *given: Any, **options: Any) -> torch.Tensor:
        seen.append(given[3])
        return plain(self, *given, **options)

    monkeypatch.setattr(ToyPixel, "predict", predict)
    flip = {**config.concepts[0].model_dump(), "image_variations": 1, "image": {"flip": "always"}}
    ran = run(laid_over(config, {"concepts": [flip], "data": {"latent_cache": latent_cache}}))
    expected = {
        number: torch.from_numpy(rising(number).copy()).float().expand(3, -1, -1).flip(-1) / 127.5 - 1
        for number in set(range(NUM_IMAGES)) - {WITHOUT}
    } | {WITHOUT: torch.zeros(3, SIZE, SIZE)}
    arrived = []
    for inputs in seen:
        assert list(inputs) == ["reference"]
        for row in inputs["reference"]:
            arrived.append([number for number, image in expected.items() if torch.equal(row, image)])
    assert sorted(arrived[2:]) == sorted([[n] for n in range(NUM_IMAGES)] * 2), "without the two of the dry run"
    assert any(p.what == "reference images" for p in ran.of(CacheProgress)) == latent_cache
    if latent_cache:
        again = run(laid_over(config, {"concepts": [flip], "training": {"epochs": 1}}))
        assert not again.of(CacheProgress), "all entries are found"


def test_cached_and_encoded_references_are_bit_equal(config: Config) -> None:
    """With one variation, the draws of both are the same in the first epoch."""
    one = laid_over(config, {"concepts": [{**config.concepts[0].model_dump(), "image_variations": 1}]})
    cached = delivered(one)
    encoded = delivered(laid_over(one, {"data": {"latent_cache": False}}))
    assert [b.sample_indices for b in cached] == [b.sample_indices for b in encoded]
    for of_cache, fresh in zip(cached, encoded, strict=True):
        assert torch.equal(of_cache.latents_BCHW, fresh.latents_BCHW)
        assert_equal_tensors(dict(of_cache.inputs), dict(fresh.inputs))


def test_several_processes_get_the_rows_of_their_images(config: Config) -> None:
    wholes = {(b.step, b.micro_batch): b for b in delivered(config)}
    num_rows = 0
    for index in range(2):
        for batch in delivered(config, rank=Rank(index, 2)):
            rows = slice(batch.first_row, batch.first_row + batch.num_samples)
            whole = wholes[batch.step, batch.micro_batch]
            assert torch.equal(batch.inputs["reference"], whole.inputs["reference"][rows])
            num_rows += batch.num_counted
    assert num_rows == NUM_IMAGES


@pytest.mark.parametrize("latent_cache", [True, False])
def test_it_arrives_on_the_training_device_in_the_dtype_of_the_latents(config: Config, latent_cache: bool) -> None:
    guard = DeviceGuard()
    changes = {
        "general": {"train_device": "cpu:1", "temp_device": "cpu"},
        "training": {"precision": "bfloat16"},
        "data": {"latent_cache": latent_cache},
    }
    with process_settings(num_threads=1, precision="bfloat16", deterministic=False), guard:
        setup = run_setup(laid_over(config, changes))
        prepared = prepare(replace(setup, machine=replace(setup.machine, guard=guard)))
        try:
            batches = list(prepared.training.loader.batches(0, first_epoch_step=0, step=0))
            tags = {guard.tag_of(b.inputs["reference"]) for b in batches}
        finally:
            prepared.close()
    assert tags == {"cpu:1"}
    assert {b.inputs["reference"].dtype for b in batches} == {torch.bfloat16}


def test_pruning_knows_its_entries(config: Config) -> None:
    delivered(config)
    unused = unused_by([config])
    assert unused.entries == ()
    assert unused.num_used > 2 * NUM_IMAGES, "images, references and captions"


def test_the_keys_of_inpainting_are_those_of_stored_caches() -> None:
    """Literal values of caches that exist: another key would encode everything again."""
    image = SourceImage(Path(), "a.png", 48, 40, size_bytes=1, mtime_ns=2, captions=("a disc",))
    recipe = plain_recipe(resize_crop_for(48, 40, (Size(32, 32),)))
    version = ImageVersion(0, 0, 0, recipe, SizeConditioning.of(Size(48, 40), recipe.geometry), 7)
    reader = reader_of(INPUTS["masked_image"], 8)
    plain = Example(image, 0, ())
    file = Companion(Path("a-condlabel.png"), Size(48, 40), size_bytes=3, mtime_ns=4)
    custom = replace(plain, input_files={"masked_image": file})
    known = KnownKeys({version.place: "image"}, {version.place: "mask"}, {0: "digest"}, "encoder")
    blank = replace(version, variation=BLANK)
    assert [
        reader.key(plain, version, known),
        reader.key(plain, version, replace(known, masks={})),
        reader.key(custom, version, known),
        reader.key(custom, blank, known),
    ] == [
        "f5efd9c28a22c79503b368b36c6b7c2b516de745",
        "0c288b84ad6d46cf0846abe567dc9e8b3d776815",
        "aa63e6a0cb3d8222a589e1be919fa3eab8c102ff",
        "9913e30caeb1cd50ee8f8642b7e19dbfe28940f2",
    ]
