"""A backup exported as a model is what the run itself saves at that step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.formats.safetensors_io import read_safetensors
from tests.builders.configs import small_config
from tests.builders.runs import assert_equal_tensors, run
from trainer.__main__ import main
from trainer.events import ModelSaved

EVERY_STEPS = {"n": 2, "unit": "step"}


@pytest.mark.parametrize(
    "training",
    [
        {"ema": {"mode": "train_device"}},
        pytest.param({"ema": {"mode": "off"}}, marks=pytest.mark.full),
        {"optimizer": {"name": "schedule_free_adamw"}},
    ],
    ids=["EMA", "weights", "schedule-free"],
)
def test_an_exported_backup_is_the_save_of_its_step(
    tiny_sd: Path, images: Path, tmp_path: Path, training: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {
        "backup": {"every": EVERY_STEPS, "save_every": EVERY_STEPS, "keep": 0},
    }
    training = {"epochs": 1, **training}
    ran = run(small_config(tmp_path, model=tiny_sd, images=images, training=training, **changes))
    [save] = [s for s in ran.of(ModelSaved) if s.step == 2]
    backup, out = Path(save.path).parent.parent / "backup" / "step-00000002", tmp_path / "exported.safetensors"
    assert main(["export", str(backup), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}\n"
    assert "Step 2 of the run." in printed.err
    tensors, metadata = read_safetensors(out)
    expected, of_save = read_safetensors(Path(save.path))
    assert_equal_tensors(expected, tensors)
    assert (metadata["ss_steps"], metadata["ss_output_name"]) == (of_save["ss_steps"], "exported")
    assert main(["export", str(backup), "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["export", str(backup), "--out", str(tmp_path / "exported.xyz")]) == 2
    assert "exported.xyz does not end in .safetensors" in capsys.readouterr().err
