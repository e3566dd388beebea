"""When samples are painted, and where they are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders.configs import small_config
from tests.builders.pictures import draw_folder
from tests.builders.runs import Ran, run
from trainer.events import SampleReady
from trainer.tensorboard_log import TensorBoardLog

PROMPT = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 1, "guidance": 1.0}


def painted(folder: Path, model: Path, *, tensorboard: bool = False, **sampling: Any) -> Ran:
    pictures = draw_folder(folder / "pictures", sizes=[(64, 64)] * 4)
    settings = {"every": {"n": 1, "unit": "step"}, "at_start": False, "at_end": False, "prompts": [PROMPT], **sampling}
    config = small_config(
        folder,
        model=model,
        pictures=pictures,
        general={"tensorboard": tensorboard},
        training={"epochs": 1, "batch_size": 1},
        sampling=settings,
    )
    return run(config)


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
    ran = painted(tmp_path, tiny_sd, skip_first=skip_first)
    assert [sample.step for sample in ran.of(SampleReady)] == steps


@pytest.mark.parametrize("to_tensorboard", [True, False])
def test_samples_may_stay_out_of_tensorboard(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_tensorboard: bool
) -> None:
    shown: list[int] = []
    monkeypatch.setattr(TensorBoardLog, "image", lambda self, tag, image, step: shown.append(step))
    ran = painted(tmp_path, tiny_sd, tensorboard=True, to_tensorboard=to_tensorboard)
    assert len(ran.of(SampleReady)) == 4
    assert shown == ([1, 2, 3, 4] if to_tensorboard else [])
