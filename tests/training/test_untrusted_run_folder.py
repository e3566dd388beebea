"""A run's folder of a stranger: its backup is exported, resumed and started from without running code from it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.hostile_files import planted
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, run
from trainer.commands import CommandDesk
from trainer.events import RunFailed
from trainer.launch import RunRequest
from trainer.run.execute import execute_guarded
from trainer.run.export_backup import export_backup
from trainer.run_folder.backup import find_backup


def test_a_backup_with_code_in_its_shards_is_refused(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["a disc"])
    config = small_config(tmp_path, model=tiny_sd, images=images, training={"epochs": 1})
    backup = find_backup(Path(run(config).finished.backup_path))
    canary = tmp_path / "canary"
    shards = backup.path / "shards"
    shards.mkdir()
    (shards / ".metadata").write_bytes(b"\x80\x02" + planted(canary)["REDUCE"] + b".")
    with pytest.raises(DarkroomError, match=r"posix\.mkdir"):
        export_backup(backup, tmp_path / "out.safetensors", now=datetime.now())
    config = laid_over(config, {"training": {"epochs": 3}})
    failed = [run(config, resume_from=backup.run_dir)]
    for kind in ("fork", "fork_weights"):
        ran = Ran()
        request = RunRequest(config, kind, backup.path, in_window=False)
        execute_guarded(request, emit=ran.events.append, desk=CommandDesk())
        failed.append(ran)
    for ran in failed:
        assert isinstance(ran.ending, RunFailed)
        assert "posix.mkdir" in ran.ending.message
    assert not canary.exists()
