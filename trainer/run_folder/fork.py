"""A fork: a new run that starts from a backup of another run, whose folder is only read."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from modules.config.compare import fixed_on_resume
from modules.config.schema import Config
from modules.system.atomic import copy_file, copy_folder, remove_quietly, write_text
from modules.system.paths import as_config_path
from modules.system.regular_files import read_json_object
from trainer.event_lines import from_line
from trainer.events import RewardMeasured, RunStarted, StepFinished, ValidationFinished
from trainer.run_folder.backup import BackupInfo
from trainer.run_folder.event_log import EVENTS_FILE
from trainer.run_folder.run_dir import start_copy_in, weights_copy_in

ORIGIN_FILE = "forked_from.json"
LAYOUT_FILE = "layout.json"
"""The memory layout of a run's weights: with another one a resumed run would round differently."""
COMPILE_FILE = "compile.json"
"""The steps that a run compiles, if it chose them itself: compiled blocks round differently."""
_OF_WEIGHTS = ("model.base_model", "training.trains", "adapter.", "embeddings")
_FAMILY = "model.family"  # another one; its settings may change
_MEASURED = (StepFinished, ValidationFinished, RewardMeasured)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a fork: the other run, and the step of its backup. `is_weights_only`: without its state."""

    run_dir: Path
    step: int
    is_weights_only: bool = False


@dataclass(frozen=True, slots=True)
class ForkSource:
    """The start of a fork: a backup of a run, or only the weights of a model that the run has saved.

    `run` is the name of the run in sentences; `step` is -1 if it is not known.
    """

    run_dir: Path
    run: str
    step: int
    path: Path
    backup: BackupInfo | None = None

    @property
    def label(self) -> str:
        """Its step as text, or its name."""
        return f"step {self.step:,}" if self.step >= 0 else self.path.stem

    @property
    def place(self) -> str:
        """Its path, from the folder of the run on if it is inside."""
        is_inside = self.path.is_relative_to(self.run_dir)
        return self.path.relative_to(self.run_dir).as_posix() if is_inside else as_config_path(self.path)


def weights_do_not_fit(of_run: Config, wanted: Config) -> list[str]:
    """Return the changed settings that give the weights of a run another meaning: no fork can start from them then."""
    changed = [p for p in fixed_on_resume(of_run, wanted) if p == _FAMILY or f"{p}.".startswith(_OF_WEIGHTS)]
    return [p for p in changed if "dropout" not in p]


def fork_into(run_dir: Path, backup: BackupInfo) -> BackupInfo:
    """Copy a backup into the folder of a new run, with the files it needs and the curves up to it; return the copy.

    The backup comes last and appears at once: a folder that has it has everything. Raises OSError, for example on a
    full disk; the new folder is then removed.
    """
    copy = run_dir / "backup" / backup.path.name
    try:
        _copy_start(run_dir, backup)
        if weights_copy_in(backup.run_dir).is_file():
            copy_file(weights_copy_in(backup.run_dir), weights_copy_in(run_dir))
        if (backup.run_dir / COMPILE_FILE).is_file():
            copy_file(backup.run_dir / COMPILE_FILE, run_dir / COMPILE_FILE)
        _copy_history(run_dir, backup)
        write_origin(run_dir, Origin(backup.run_dir, backup.step))
        copy_folder(backup.path, copy)
    except BaseException:
        remove_quietly(run_dir)
        raise
    return replace(backup, path=copy)


def fork_weights_into(run_dir: Path, backup: BackupInfo) -> None:
    """Prepare the folder of a new run that reads only the weights of a backup. Raises OSError."""
    _copy_start(run_dir, backup)
    write_origin(run_dir, Origin(backup.run_dir, backup.step, is_weights_only=True))


def write_origin(run_dir: Path, origin: Origin) -> None:
    """Record where a fork comes from."""
    data = {"run_dir": str(origin.run_dir), "step": origin.step, "is_weights_only": origin.is_weights_only}
    write_text(run_dir / ORIGIN_FILE, json.dumps(data, indent=1))


def origin_of(run_dir: Path) -> Origin | None:
    """Return where a run comes from; None for a run that is not a fork."""
    match read_json_object(run_dir / ORIGIN_FILE):
        case {"run_dir": str(place), "step": int(step), "is_weights_only": bool(is_weights_only)}:
            return Origin(Path(place), step, is_weights_only)
        case _:
            return None


def _copy_start(run_dir: Path, backup: BackupInfo) -> None:
    """Copy the files that the other run started from: adapter file, embeddings, memory layout."""
    start = start_copy_in(backup.run_dir)
    if start.is_file():
        copy_file(start, start_copy_in(run_dir))
    if (backup.run_dir / LAYOUT_FILE).is_file():
        copy_file(backup.run_dir / LAYOUT_FILE, run_dir / LAYOUT_FILE)
    if (backup.run_dir / "embeddings").is_dir():
        copy_folder(backup.run_dir / "embeddings", run_dir / "embeddings")


def _copy_history(run_dir: Path, backup: BackupInfo) -> None:
    """Copy the curves up to the backup, without steps that were lost when the run was resumed from an earlier one.

    A history that cannot be read does not prevent the fork.
    """
    try:
        lines = (backup.run_dir / EVENTS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    kept: list[tuple[int, str]] = []
    for line in lines:
        event = from_line(line)
        if isinstance(event, RunStarted):
            kept = [(step, earlier) for step, earlier in kept if step <= event.first_step]
        elif isinstance(event, _MEASURED) and event.step <= backup.step:
            kept.append((event.step, line))
    write_text(run_dir / EVENTS_FILE, "".join(f"{line}\n" for _, line in kept))
