"""The best model belongs to the backup: a resumed run and a fork have that of their own branch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.formats.metadata import unfold_metadata
from modules.formats.safetensors_io import read_safetensors
from modules.system.atomic import write_text
from tests.builders.configs import laid_over
from tests.builders.runs import Ran
from tests.training.test_validation import config as config_fixture
from tests.training.test_validation import held_out as held_out_fixture
from tests.training.test_validation import play, validated
from trainer.commands import CommandDesk
from trainer.events import Event, ModelSaved, RunFailed, RunStarted, WarningRaised
from trainer.launch import RunRequest
from trainer.run.execute import execute_guarded
from trainer.run_folder.backup import MANIFEST, list_backups, verify

config, held_out = config_fixture, held_out_fixture
WHOLE: dict[str, Any] = {
    "training": {"trains": "full"},
    "output": {"model_format": "diffusers", "dtype": "float32"},
}


class Killed(BaseException):
    """The end of the process."""


def start(config: Config, kind: Any = "train", backup: Path | None = None, *, killed_after_best: int = 0) -> Ran:
    ran = Ran()

    def emit(event: Event) -> None:
        ran.events.append(event)
        if isinstance(event, ModelSaved) and event.best_by and event.step == killed_after_best:
            raise Killed

    execute_guarded(RunRequest(config, kind, backup, in_window=False), emit=emit, desk=CommandDesk())
    return ran


def run_dir_of(ran: Ran) -> Path:
    return Path(ran.of(RunStarted)[0].run_dir)


def step_of(model: Path) -> str:
    """After which step a model was saved."""
    file = model if model.is_file() else next(model.glob("unet/*.safetensors"))
    metadata = read_safetensors(file)[1]
    return {**unfold_metadata(metadata), **metadata}["ss_steps"]


def best_config(config: Config, held_out: Path, changes: dict[str, Any]) -> Config:
    found = validated(config, held_out, keep_best=True, result="best")
    found = laid_over(found, {"backup": {"every": {"n": 3, "unit": "step"}, "keep": 0}})
    if changes:
        place = Path(found.output.destination).with_name("model")
        changes = {**changes, "output": {**changes["output"], "destination": str(place)}}
    return laid_over(found, changes)


@pytest.fixture
def branches(
    config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> tuple[Config, Ran]:
    """A run that is killed after step 4, whose model is the best; that of step 2 was when its backup was written."""
    losses = {2: 0.5, 4: 0.4}
    play(monkeypatch, losses)
    whole = best_config(config, held_out, getattr(request, "param", {}))
    killed = start(whole, killed_after_best=4)
    assert isinstance(killed.ending, RunFailed)
    losses.clear()  # resumed, no model is better than that of step 2
    run_dir = run_dir_of(killed)
    rescued = [b for b in list_backups(run_dir) if b.step > 3]
    for backup in rescued:  # a killed process does not write any
        shutil.rmtree(backup.path)
    return whole, killed


@pytest.mark.parametrize("branches", [{}, pytest.param(WHOLE, marks=pytest.mark.full)], indirect=True)
def test_a_resumed_run_ends_with_the_best_of_its_own_branch(branches: tuple[Config, Ran]) -> None:
    """Its message named step 2, and the model was that of step 4."""
    config, killed = branches
    changed = laid_over(config, {"training": {"learning_rate": 5e-4}})
    resumed = start(changed, "resume", run_dir_of(killed))
    assert "from step 2 (loss 0.5)" in resumed.finished.message
    assert step_of(Path(resumed.finished.model_path)) == "2"


def test_another_destination_takes_the_best_along(branches: tuple[Config, Ran], tmp_path: Path) -> None:
    config, killed = branches
    moved = laid_over(config, {"output": {"destination": str(tmp_path / "other.safetensors")}})
    resumed = start(moved, "resume", run_dir_of(killed))
    assert "from step 2 (loss 0.5)" in resumed.finished.message
    assert step_of(tmp_path / "other.safetensors") == "2"


def test_a_fork_has_the_best_of_its_backup(branches: tuple[Config, Ran]) -> None:
    """It copied the loss of the best model and not its file, and ended with the last model."""
    config, killed = branches
    [backup] = list_backups(run_dir_of(killed))
    forked = start(config, "fork", backup.path)
    assert run_dir_of(forked) != run_dir_of(killed)
    assert "from step 2 (loss 0.5)" in forked.finished.message
    assert step_of(Path(forked.finished.model_path)) == "2"


def without_best(backup: Path) -> None:
    """Make a backup one of an older version."""
    shutil.rmtree(backup / "best")
    manifest = json.loads((backup / MANIFEST).read_text())
    del manifest["best"]
    write_text(backup / MANIFEST, json.dumps(manifest))


@pytest.mark.parametrize("kind", ["resume", "fork"])
def test_of_an_older_backup_a_best_of_another_step_is_not_the_result(branches: tuple[Config, Ran], kind: str) -> None:
    config, killed = branches
    [backup] = list_backups(run_dir_of(killed))
    without_best(backup.path)
    resumed = start(config, kind, backup.path)
    assert "best" not in resumed.finished.message
    assert any("-best" in w.message for w in resumed.of(WarningRaised))
    assert step_of(Path(resumed.finished.model_path)) == str(resumed.finished.step)


@pytest.mark.parametrize("kind", ["resume", "fork"])
def test_of_an_older_backup_the_best_of_its_step_is_used(
    config: Config, held_out: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    play(monkeypatch, {2: 0.5})
    settings = best_config(config, held_out, {})
    first = start(settings)
    backup = list_backups(run_dir_of(first))[0]
    without_best(backup.path)
    resumed = start(settings, kind, backup.path)
    assert "from step 2 (loss 0.5)" in resumed.finished.message
    assert step_of(Path(resumed.finished.model_path)) == "2"


def test_a_best_model_that_was_changed_does_not_prevent_a_resume(branches: tuple[Config, Ran]) -> None:
    config, killed = branches
    [backup] = list_backups(run_dir_of(killed))
    [best] = (backup.path / "best" / "validation").iterdir()
    best.write_bytes(best.read_bytes() + b" ")
    verify(backup)
    resumed = start(config, "resume", backup.path)
    assert step_of(Path(resumed.finished.model_path)) == str(resumed.finished.step)
    assert any("-best" in w.message for w in resumed.of(WarningRaised))


def test_the_best_in_a_backup_needs_no_room(branches: tuple[Config, Ran]) -> None:
    config, killed = branches
    resumed = start(config, "resume", run_dir_of(killed))
    run_dir = run_dir_of(killed)
    bests = [b.path / "best" / "validation" / "model.safetensors" for b in list_backups(run_dir)]
    assert len(bests) == 2
    assert resumed.finished
    assert all(best.samefile(run_dir / "save" / "lora-best.safetensors") for best in bests[1:])
    assert not bests[0].samefile(bests[1])  # that of step 4 had replaced it, and was replaced by a copy of it
