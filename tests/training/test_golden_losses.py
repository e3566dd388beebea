"""The losses of a small run, step by step, as they were when someone last meant to change them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch

from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import small_config
from tests.builders.models import write_sd_folder
from tests.builders.pictures import draw_folder
from tests.builders.runs import run
from trainer.events import StepFinished

GOLDEN = PROGRAM_ROOT / "tests" / "golden" / "sd_lora.json"


def losses_of(model: Path, folder: Path) -> dict[str, list[float | None]]:
    pictures = draw_folder(folder / "pictures", sizes=[(64, 64)] * 5 + [(96, 64)] * 4)
    config = small_config(
        folder,
        model=model,
        pictures=pictures,
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


def test_losses_are_the_golden_ones(tiny_sd: Path, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())
    losses = losses_of(tiny_sd, tmp_path)
    assert len(losses["loss"]) == 12
    assert losses["loss"] == pytest.approx(golden["loss"], rel=1e-5)
    assert losses["gradient_norm"] == pytest.approx(golden["gradient_norm"], rel=1e-3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        GOLDEN.write_text(json.dumps(losses_of(write_sd_folder(folder / "model"), folder), indent=1) + "\n")
