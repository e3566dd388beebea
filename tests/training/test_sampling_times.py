"""When samples are generated, and where they are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.adapters.lora_layers import LoraAdapter
from modules.memory.guard import DeviceMixError
from modules.memory.placement import ParkedPartError
from tests.builders.configs import small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, run
from trainer.callbacks.image_sampler import ImageSampler
from trainer.callbacks.tensorboard_log import TensorBoardLog
from trainer.events import ModelSaved, RunFailed, SampleReady, WarningRaised

PROMPT = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 1, "guidance": 1.0}


def sampled(folder: Path, model: Path, *, tensorboard: bool = False, **sampling: Any) -> Ran:
    images = draw_folder(folder / "images", sizes=[(64, 64)] * 4)
    settings = {"every": {"n": 1, "unit": "step"}, "at_start": False, "at_end": False, "prompts": [PROMPT], **sampling}
    config = small_config(
        folder,
        model=model,
        images=images,
        general={"tensorboard": tensorboard},
        training={"epochs": 1, "batch_size": 1},
        sampling=settings,
    )
    return run(config)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("skip_first", "steps"),
    [
        ({"n": 1, "unit": "never"}, [1, 2, 3, 4]),
        ({"n": 3, "unit": "step"}, [3, 4]),
        ({"n": 1, "unit": "epoch"}, [4]),
        ({"n": 9, "unit": "hour"}, []),
    ],
)
def test_the_first_samples_may_be_skipped(tiny_sd: Path, tmp_path: Path, skip_first: Any, steps: list[int]) -> None:
    ran = sampled(tmp_path, tiny_sd, skip_first=skip_first)
    assert [sample.step for sample in ran.of(SampleReady)] == steps


def test_samples_without_ema_and_with_another_seed_each_time(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2)
    every_step = {"n": 1, "unit": "step"}
    config = small_config(
        tmp_path,
        model=tiny_sd,
        images=images,
        training={"epochs": 1, "batch_size": 1, "learning_rate": 0.03, "ema": {"mode": "train_device", "decay": 0.99}},
        sampling={
            "every": every_step, "at_start": True, "at_end": False, "also_without_ema": True,
            "prompts": [PROMPT, {**PROMPT, "random_seed": True}],
        },
        backup={"save_every": every_step, "save_skip_first": {"n": 2, "unit": "step"}},
    )  # fmt: skip
    ran = run(config)
    ready = ran.of(SampleReady)
    places = [(s.step, s.index, s.is_without_ema) for s in ready]
    assert places == [(step, index, plain) for step in range(3) for plain in (False, True) for index in (0, 1)]
    pixels = {place: Path(s.path).read_bytes() for place, s in zip(places, ready, strict=True)}
    assert pixels[0, 0, False] == pixels[0, 0, True], "before training, both are the same weights"
    assert pixels[2, 0, False] != pixels[2, 0, True]
    assert pixels[0, 1, False] != pixels[0, 0, False]
    assert [s.step for s in ran.of(ModelSaved) if not s.is_final] == [2]


@pytest.mark.daily(1)
@pytest.mark.parametrize("to_tensorboard", [True, False])
def test_samples_may_stay_out_of_tensorboard(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_tensorboard: bool
) -> None:
    shown: list[int] = []
    monkeypatch.setattr(TensorBoardLog, "image", lambda self, tag, image, step: shown.append(step))
    ran = sampled(tmp_path, tiny_sd, tensorboard=True, to_tensorboard=to_tensorboard)
    assert len(ran.of(SampleReady)) == 4
    assert shown == ([1, 2, 3, 4] if to_tensorboard else [])


def fail_after_the_dry_run(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make sampling fail, except for the sample of the dry run."""
    plain = ImageSampler.sample

    def sample(self: ImageSampler, *arguments: Any, most_steps: int | None = None, **options: Any) -> Any:
        if most_steps is None:
            raise error
        return plain(self, *arguments, most_steps=most_steps, **options)

    monkeypatch.setattr(ImageSampler, "sample", sample)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(RuntimeError("no room\nat all"), "no room"), (ValueError(), "no reason was given")],
)
def test_samples_that_fail_do_not_end_the_run(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    fail_after_the_dry_run(monkeypatch, error)
    ran = sampled(tmp_path, tiny_sd)
    assert ran.finished.step == 4
    warnings = [w.message for w in ran.of(WarningRaised) if "samples" in w.message]
    assert warnings == [f"The samples could not be generated: {reason}."] * 4


@pytest.mark.parametrize("kind", [DeviceMixError, ParkedPartError])
def test_an_internal_error_ends_the_run(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """The guard's findings are no samples that failed: as warnings they would be overlooked."""
    fail_after_the_dry_run(monkeypatch, kind("planted"))
    ending = sampled(tmp_path, tiny_sd).ending
    assert isinstance(ending, RunFailed)
    assert ending.message == "An unexpected error occurred: planted."


def test_an_adapter_that_changes_nothing_yet_is_left_out(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, found = LoraAdapter.changes_nothing, []

    def recorded(self: LoraAdapter) -> bool:
        found.append(plain(self))
        return found[-1]

    def images(folder: str) -> list[bytes]:
        prompt = {**PROMPT, "steps": 3, "guidance": 3.0}
        ran = sampled(tmp_path / folder, tiny_sd, at_start=True, every={"n": 4, "unit": "step"}, prompts=[prompt])
        return [Image.open(sample.path).tobytes() for sample in ran.of(SampleReady)]

    monkeypatch.setattr(LoraAdapter, "changes_nothing", recorded)
    left_out = images("left out")
    assert found == [True, True, False, False]  # of the UNet and the text encoder, before and after training
    monkeypatch.setattr(LoraAdapter, "changes_nothing", lambda self: False)
    assert images("kept") == left_out
