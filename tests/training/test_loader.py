"""Batches are the same with any number of loader threads, from any step on, and arrive where they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.loop_speed import run_setup
from modules.config.schema import Config
from modules.data.batch import Batch
from modules.memory.guard import DeviceGuard
from modules.system.ranks import Rank
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder, draw_mask
from trainer.data.loader import Loader
from trainer.run.finish import PreparedRun
from trainer.run.training_run import prepare
from trainer.step.precision import process_settings

EPOCH, NUM_IMAGES = 3, 11


@pytest.fixture(scope="module")
def config(tiny_sdxl: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("loader")
    images = draw_folder(folder / "images", sizes=[(64, 64), (96, 64)] * (NUM_IMAGES // 2) + [(64, 64)])
    draw_mask(images / "000-masklabel.png")
    return small_config(
        folder,
        model=tiny_sdxl,
        images=images,
        concepts=[{"path": str(images), "image_variations": 2, "image": {"flip": "random", "brightness": "random", "brightness_max": 0.2}}],  # noqa: E501
        parts={key: {"train": False} for key in ("text_encoder", "text_encoder_2")},
        training={"batch_size": 2, "accumulation_steps": 2},
        data={"caption_dropout": 0.3, "caption_dropout_2": 0.3},
        masks={"enabled": True},
    )  # fmt: skip


@pytest.fixture(scope="module")
def prepared(config: Config) -> Iterator[PreparedRun]:
    run = prepare(run_setup(config))
    yield run
    run.close()


@pytest.fixture
def loader(prepared: PreparedRun) -> Loader:
    return prepared.training.loader


def delivered(loader: Loader, *, first_epoch_step: int = 0) -> list[Batch]:
    return list(loader.batches(EPOCH, first_epoch_step=first_epoch_step, step=100 + first_epoch_step))


def tensors_of(batch: Batch) -> dict[str, torch.Tensor]:
    found = {name: value for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}
    assert batch.conditioning is not None
    return found | dict(batch.inputs) | batch.conditioning.tensors()  # type: ignore[union-attr]


def assert_same(one: Batch, other: Batch) -> None:
    assert (one.captions, one.sample_indices, one.empty_for) == (other.captions, other.sample_indices, other.empty_for)
    assert (one.step, one.micro_batch, one.group_samples) == (other.step, other.micro_batch, other.group_samples)
    tensors, others = tensors_of(one), tensors_of(other)
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


@pytest.mark.parametrize("threads", [2, 7])
def test_batches_are_the_same_with_any_number_of_threads(loader: Loader, threads: int) -> None:
    alone, together = delivered(replace(loader, threads=1)), delivered(replace(loader, threads=threads))
    assert len(alone) == len(together) > 4
    for one, other in zip(alone, together, strict=True):
        assert_same(one, other)


def test_an_epoch_can_be_resumed_at_any_step(loader: Loader) -> None:
    whole = delivered(loader)
    for first in range(loader.plans.num_steps(EPOCH)):
        rest = delivered(loader, first_epoch_step=first)
        tail = [b for b in whole if b.step >= 100 + first]
        assert len(rest) == len(tail)
        for one, other in zip(rest, tail, strict=True):
            assert_same(one, other)


def test_a_batch_has_images_of_one_size_and_an_epoch_all_of_them(loader: Loader) -> None:
    batches = delivered(loader)
    for batch in batches:
        assert len({loader.dataset.buckets[s.example][s.resolution] for s in batch.sample_indices}) == 1
    assert sorted(s.example for b in batches for s in b.sample_indices) == list(range(NUM_IMAGES))


@pytest.mark.parametrize("world_size", [2, 3])
def test_several_processes_share_each_group(loader: Loader, world_size: int) -> None:
    wholes = {(b.step, b.micro_batch): b for b in delivered(loader)}
    trained: list[tuple[int, int, int]] = []
    for index in range(world_size):
        batches = delivered(replace(loader, rank=Rank(index, world_size)))
        steps = [b.step for b in batches]
        assert (
            [b.step for b in batches if b.is_last_micro_batch]
            == sorted({step for step, _ in wholes})
            == list(dict.fromkeys(steps))
        )
        for batch in batches:
            whole, rows = wholes[batch.step, batch.micro_batch], range(batch.num_samples)
            if not batch.micro_batch_samples:
                assert_same(batch, replace(whole, is_last_micro_batch=batch.is_last_micro_batch))
            elif batch.counts:
                assert batch.micro_batch_samples == whole.num_samples
                assert batch.group_start == whole.group_start + batch.first_row
            for name, tensor in tensors_of(batch).items():
                for row in rows:
                    assert torch.equal(tensor[row], tensors_of(whole)[name][batch.first_row + row]), name
            trained += [(batch.step, batch.micro_batch, batch.first_row + row) for row in rows if batch.counts]
    assert sorted(trained) == [(*place, row) for place, b in sorted(wholes.items()) for row in range(b.num_samples)]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_cached", [True, False])
def test_every_tensor_arrives_on_the_training_device_in_its_dtype(
    config: Config, tmp_path: Path, precision: str, is_cached: bool
) -> None:
    guard = DeviceGuard()
    changes = {
        "general": {"workspace_dir": str(tmp_path), "train_device": "cpu:1", "temp_device": "cpu"},
        "training": {"precision": precision},
        "data": {"latent_cache": is_cached, "text_cache": is_cached},
    }
    changed = laid_over(config, changes)
    with process_settings(num_threads=1, precision=precision, deterministic=False), guard:
        setup = run_setup(changed)
        run = prepare(replace(setup, machine=replace(setup.machine, guard=guard)))
        try:
            found = [tensors_of(b) for b in delivered(run.training.loader)]
            tags = {guard.tag_of(t) for tensors in found for t in tensors.values()}
        finally:
            run.close()
    assert tags == {"cpu:1"}
    compute = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
    for tensors in found:
        assert {n: t.dtype for n, t in tensors.items()} == {
            "latents_BCHW": compute, "loss_weights_B": torch.float32, "masks_B1HW": torch.float32,
            "area_weights_B1HW": torch.float32, "states": compute, "pooled": compute,
        }  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_batches_come_from_pinned_memory(config: Config, tmp_path: Path) -> None:
    run = prepare(run_setup(laid_over(config, {"general": {"workspace_dir": str(tmp_path), "train_device": "cuda"}})))
    try:
        loader = run.training.loader
        prepared_texts = loader.conditioning.prepare(["picture number 0"])
        assert prepared_texts is not None
        assert all(t.is_pinned() for t in prepared_texts.tensors().values())
        assert all(t.is_cuda for batch in delivered(loader) for t in tensors_of(batch).values())
    finally:
        run.close()
