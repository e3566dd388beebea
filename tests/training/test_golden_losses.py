"""The losses of a small run, step by step, as they were when someone last meant to change them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import small_config
from tests.builders.images import draw_folder
from tests.builders.models import write_sd_folder
from tests.builders.more_models import write_sdxl_folder
from tests.builders.runs import run
from trainer.events import StepFinished

GOLDEN = PROGRAM_ROOT / "tests" / "golden"
WRITERS: dict[str, Callable[[Path], Path]] = {
    "sd_lora": write_sd_folder,
    "sdxl_v_lora": lambda folder: write_sdxl_folder(folder, zero_snr=True),
}


def losses_of(model: Path, folder: Path) -> dict[str, list[float | None]]:
    images = draw_folder(folder / "images", sizes=[(64, 64)] * 5 + [(96, 64)] * 4)
    config = small_config(
        folder,
        model=model,
        images=images,
        training={
            "epochs": 4,
            "batch_size": 2,
            "accumulation_steps": 2,
            "learning_rate": 3e-3,
            "schedule": {"name": "linear", "warmup_steps": 2},
            "loss": {"weighting": "min_snr"},
        },
        adapter={"dropout": 0.1},
        data={"caption_dropout": 0.1},
    )
    steps = run(config).of(StepFinished)
    return {"loss": [s.loss for s in steps], "gradient_norm": [s.gradient_norm for s in steps]}


@pytest.mark.parametrize(("name", "model"), [("sd_lora", "tiny_sd"), ("sdxl_v_lora", "tiny_sdxl_v")])
def test_losses_are_the_golden_ones(request: pytest.FixtureRequest, tmp_path: Path, name: str, model: str) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    losses = losses_of(request.getfixturevalue(model), tmp_path)
    assert len(losses["loss"]) == 12
    assert losses["loss"] == pytest.approx(golden["loss"], rel=1e-5)
    assert losses["gradient_norm"] == pytest.approx(golden["gradient_norm"], rel=1e-3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, write in WRITERS.items():
        with tempfile.TemporaryDirectory() as place:
            losses = losses_of(write(Path(place) / "model"), Path(place))
        (GOLDEN / f"{name}.json").write_text(json.dumps(losses, indent=1) + "\n")
