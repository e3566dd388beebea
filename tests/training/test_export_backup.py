"""A backup exported as a model is what the run itself saves at that step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.formats.safetensors_io import read_safetensors
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.runs import assert_equal_tensors, run
from trainer.__main__ import main
from trainer.events import ModelSaved
from trainer.run.export_backup import _weights_kind
from trainer.run_folder.backup import BackupInfo

EVERY_STEPS = {"n": 2, "unit": "step"}


@pytest.mark.parametrize("ema", ["train_device", pytest.param("off", marks=pytest.mark.full)])
def test_an_exported_backup_is_the_save_of_its_step(
    tiny_sd: Path, images: Path, tmp_path: Path, ema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {
        "training": {"epochs": 1, "ema": {"mode": ema}},
        "backup": {"every": EVERY_STEPS, "save_every": EVERY_STEPS, "keep": 0},
    }
    ran = run(laid_over(small_config(tmp_path, model=tiny_sd, images=images), changes))
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


def test_an_optimizer_with_weights_of_its_own_is_refused(tmp_path: Path) -> None:
    config = Config.model_validate({"training": {"optimizer": {"name": "schedule_free_adamw"}}})
    backup = BackupInfo(tmp_path, 2, 1, "2026-01-01T00:00:00")
    with pytest.raises(DarkroomError, match="averages them itself"):
        _weights_kind(backup, config)
    (tmp_path / "ema.safetensors").touch()
    assert _weights_kind(backup, config) == "ema"
