"""The report on the images of a run: in mid-run and of a backup, without an effect on either."""

from __future__ import annotations

import gc
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.config.codec import load_file
from modules.config.schema import Config
from modules.data.batch import Batch
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, run
from trainer.callbacks.image_report import (
    ImageReportCallback,
    Measured,
    _measure_file,
    _neighbour_correlations,
    _with_looks,
)
from trainer.commands import Command, ReportNow, Stop
from trainer.events import Event, PhaseChanged, StepFinished, WarningRaised
from trainer.machine_events import ImagesReported
from trainer.run_folder.image_report import DATA_FILE, ImageLoss, ImageReport, newest_report, page_of
from trainer.step.fixed_losses import FixedLosses, LossesAtTimestep

Listener = Callable[[Event, Callable[[Command], None]], None]


def config_of(folder: Path, model: Path, images: Path) -> Config:
    """Return the config of a run that uses each image twice an epoch, flips some and drops captions and a batch."""
    changes = {
        "concepts": [
            {"path": str(images), "repeats": 2.0, "image": {"flip": "random"}},
            {"path": str(images), "kind": "validation"},
        ],
        "data": {"caption_dropout": 0.5, "partial_batches": "drop"},
        "training": {"trains": "adapter", "epochs": 2, "ema": {"mode": "train_device", "decay": 0.9}},
        "validation": {"every": {"n": 1, "unit": "epoch"}},
    }
    return laid_over(small_config(folder, model=model, images=images), changes)


def run_with_report(config: Config, *, step: int, on_event: Listener = lambda event, send: None) -> Ran:
    """Run, and ask for a report after a step."""

    def listen(event: Event, send: Callable[[Command], None]) -> None:
        on_event(event, send)
        if isinstance(event, StepFinished) and event.step == step:
            send(ReportNow())

    return run(config, on_event=listen)


def bytes_of_tensors() -> int:
    """Return the size of all tensors in memory."""
    gc.collect()
    tensors = (o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and o.device.type == "cpu")
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in tensors)}
    return sum(storages.values())


def files_of(folder: Path) -> dict[str, str]:
    """Return the digests of the files in a run's folder, without its reports."""
    files = (f for f in folder.rglob("*") if f.is_file() and "report" not in f.relative_to(folder).parts)
    return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.mark.full
def test_a_report_measures_each_image_once_and_changes_nothing(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    """Neither the losses that follow nor, when it is made again from the backup, the folder of the run."""
    config = config_of(tmp_path, tiny_sd, images)
    plain = run(laid_over(config, {"general": {"workspace_dir": str(tmp_path / "plain")}}))
    ran = run_with_report(config, step=6)
    assert [s.loss for s in ran.of(StepFinished)] == [s.loss for s in plain.of(StepFinished)]
    [reported] = ran.of(ImagesReported)
    page = Path(reported.path)
    assert (reported.num_images, reported.step, page.parent.name) == (10, 6, "step-00000006")
    run_dir = page.parents[2]
    report = newest_report(run_dir)
    assert report is not None
    assert report.timesteps == (125, 375, 625, 875)
    assert sorted((i.kind, Path(i.path).name) for i in report.images) == [
        (kind, f"{n:03}.png") for kind in ("training", "validation") for n in range(5)
    ]
    assert {i.kind: i.uses for i in report.images} == {"training": 2, "validation": 0}
    assert all(-1 < i.correlation < 1 for i in report.images)
    assert all(i.caption for i in report.images)
    assert page.read_text(encoding="utf-8").count("data:image/jpeg") == 10

    for file in (run_dir / "plan.csv", *(run_dir / "save").iterdir()):
        file.unlink()  # a run that is resumed writes both again
    before = files_of(run_dir)
    again = run(load_file(run_dir / "config.json").config, resume_from=run_dir, kind="report")
    assert (again.finished.outcome, again.finished.step) == ("reported", ran.finished.step)
    assert files_of(run_dir) == before
    newest = newest_report(run_dir)
    assert newest is not None
    assert {i.uses for i in newest.images if i.kind == "training"} == {4}
    assert [i.losses for i in newest.images] != [i.losses for i in report.images]
    first, second = ({(i.kind, i.path): (i.before, i.without_caption) for i in r.images} for r in (report, newest))
    assert first == second, "of the model before the training"
    assert all(len({i.losses, i.before, i.without_caption}) == 3 for i in newest.images)
    once_more = run(load_file(run_dir / "config.json").config, resume_from=run_dir, kind="report")
    assert once_more.finished.message == again.finished.message
    assert newest_report(run_dir) == newest, "the same weights, the same losses"


def test_the_report_on_a_backup_of_a_fine_tune_measures_its_start_too(tiny_sd: Path, tmp_path: Path) -> None:
    """By the loss alone far fewer bad images are found. A run that trains has no memory for its start.

    The report needs less memory than the run: one set of weights after the other is measured, without the optimizer.
    """
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2)
    config = laid_over(config_of(tmp_path, tiny_sd, images), {"training": {"trains": "full", "epochs": 1}})
    held: list[int] = []

    def hold_memory(event: object, send: object) -> None:
        if isinstance(event, PhaseChanged) and event.detail.startswith("the loss of 4 images"):
            held.append(bytes_of_tensors())

    def reports_of(config: Config) -> tuple[ImageReport, ImageReport]:
        """Return the report in mid-run, and the one on the last backup."""
        ran = run_with_report(config, step=1, on_event=hold_memory)
        run_dir = Path(ran.finished.backup_path).parents[1]
        in_training = newest_report(run_dir)
        again = run(load_file(run_dir / "config.json").config, resume_from=run_dir, kind="report", on_event=hold_memory)
        of_backup = newest_report(run_dir)
        assert in_training is not None
        assert of_backup is not None
        summaries = [reported.summary for both in (ran, again) for reported in both.of(ImagesReported)]
        assert summaries == [f"{in_training.summary} {in_training.advice}", of_backup.summary]
        return in_training, of_backup

    in_training, of_backup = reports_of(config)
    assert {(i.before, i.without_caption) for i in in_training.images} == {((), ())}
    assert (in_training.advice != "", of_backup.advice) == (True, "")
    assert in_training.advice in page_of(in_training, lambda path: b"")
    of_run, *of_report = held
    assert len(of_report) == 2, "before training and after it"
    assert max(of_report) < 0.5 * of_run, "neither the optimizer's state nor EMA is read"
    assert all(len({i.losses, i.before, i.without_caption}) == 3 and i.before for i in of_backup.images)
    changes = {"training": {"learning_rate": 3e-5}, "general": {"workspace_dir": str(tmp_path / "other")}}
    _, of_other = reports_of(laid_over(config, changes))
    starts, losses = (
        [{(i.kind, i.path): values(i) for i in report.images} for report in (of_backup, of_other)]
        for values in (lambda i: (i.before, i.without_caption), lambda i: i.losses)
    )
    assert starts[0] == starts[1], "the same model before training"
    assert losses[0] != losses[1]


def photo(seed: int) -> Image.Image:
    """Return a smooth image of several colours, unlike those of other seeds."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((320, 240), Image.Resampling.BICUBIC)


def test_the_same_photo_twice_or_encoded_again_is_a_near_duplicate_and_black_is_plain(tmp_path: Path) -> None:
    for seed in range(6):
        photo(seed).save(tmp_path / f"{seed}.png")
    photo(1).save(tmp_path / "again.png")
    photo(2).resize((200, 150)).save(tmp_path / "small.jpg", quality=70)
    Image.new("RGB", (320, 240), "black").save(tmp_path / "black.png")
    Image.new("RGB", (320, 240), "white").save(tmp_path / "white.png")
    (tmp_path / "broken.png").write_bytes(b"")
    files = sorted(tmp_path.iterdir())
    looks = {str(path): look for path in files if (look := _measure_file(path)) is not None}
    found = _with_looks([ImageLoss(str(p), "a", "training", "", 1, (0.1,)) for p in files], looks)
    same = {Path(i.path).name: Path(i.same_as).name for i in found if i.same_as}
    assert same == {"1.png": "again.png", "again.png": "1.png", "2.png": "small.jpg", "small.jpg": "2.png"}
    assert {Path(i.path).name for i in found if i.is_plain} == {"black.png", "white.png"}
    twice = _with_looks([found[0], replace(found[0], kind="validation")], {found[0].path: looks[found[0].path]})
    assert {i.same_as for i in twice} == {""}, "one file of two concepts"


@pytest.mark.parametrize("shape", [(4, 32, 48), (16, 3, 32, 48)])
def test_neighbouring_latents_are_alike_unless_they_are_of_noise(shape: tuple[int, ...]) -> None:
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    smooth = noise.cumsum(-1).cumsum(-2)
    of_noise, of_smooth, of_plain = _neighbour_correlations(torch.stack([noise, smooth, torch.ones(shape)]))
    assert abs(of_noise) < 0.05
    assert of_smooth > 0.8
    assert of_plain == 1
    assert _neighbour_correlations(smooth[None].to(torch.bfloat16))[0] > 0.8
    assert _neighbour_correlations(torch.ones(1, 4, 1, 1)) == [1], "no neighbours"


def test_a_stopped_report_leaves_no_files(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = laid_over(config_of(tmp_path, tiny_sd, images), {"training": {"epochs": 1}})
    run_dir = Path(run(config).finished.backup_path).parents[1]

    def stop(event: object, send: object) -> None:
        if isinstance(event, PhaseChanged) and event.detail.startswith("the loss of"):
            send(Stop())  # type: ignore[operator]

    stopped = run(config, resume_from=run_dir, kind="report", on_event=stop)
    assert stopped.finished.outcome == "stopped"
    assert list(run_dir.rglob(DATA_FILE)) == []


def test_images_whose_losses_are_not_finite_are_left_out_by_name(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half precision a model can overflow for one image; the medians of all would be NaN."""
    plain = FixedLosses.of

    def overflowing(self: FixedLosses, batch: Batch, *args: Any, **kwargs: Any) -> Iterator[LossesAtTimestep]:
        for at in plain(self, batch, *args, **kwargs):
            of_first = [s.example == 0 for s in batch.sample_indices]
            losses = [math.nan if is_first else loss for is_first, loss in zip(of_first, at.plain, strict=True)]
            yield replace(at, plain=losses)

    monkeypatch.setattr(FixedLosses, "of", overflowing)
    ran = run_with_report(small_config(tmp_path, model=tiny_sd, images=images), step=2)
    [reported] = ran.of(ImagesReported)
    assert reported.num_images == 4
    assert [w.message for w in ran.of(WarningRaised) if "finite" in w.message] == [
        "The losses of 1 image are not finite, so these are left out: 000.png."
    ]


def test_a_run_without_losses_of_images_says_so(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    method = {"name": "alignprop", "steps": 4, "backprop_steps": 2, "guidance": 2.0}
    changes = {
        "concepts": [{"path": str(images)}],
        "training": {"epochs": 1, "method": method},
        "reward": {"models": [{"kind": "brightness"}]},
        "parts": {"text_encoder": {"train": False}},
    }
    ran = run_with_report(laid_over(small_config(tmp_path, model=tiny_sd, images=images), changes), step=1)
    assert ran.finished.outcome == "finished"
    assert ran.of(ImagesReported) == []
    assert len([w for w in ran.of(WarningRaised) if "no denoising losses of images" in w.message]) == 1


def test_processes_may_measure_the_same_image() -> None:
    """A validation concept with repeats: its batches are dealt to several processes."""
    measured = Measured((1.0,), ((), ()), 0.0, None)
    shares = [{(True, 1): measured, (True, 0): measured}, {(True, 1): measured, (False, 0): measured}]
    report: Any = SimpleNamespace(_meeting=SimpleNamespace(share=lambda task: shares))
    assert list(ImageReportCallback._measure_all(report, "")) == [(False, 0), (True, 0), (True, 1)]
