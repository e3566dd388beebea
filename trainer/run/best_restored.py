"""The best models of a run that is resumed or forked: those of its backup, not of a branch that it abandons."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.headers import UnreadableFileError
from modules.formats.metadata import unfolded_metadata
from modules.system.file_errors import words_of
from trainer.callbacks.best import Best
from trainer.callbacks.saving import BestBy
from trainer.events import WarningRaised
from trainer.run.setup import RunSetup
from trainer.run.watchers import Watchers
from trainer.run_folder.backup import BackupInfo, best_in
from trainer.run_folder.fork import origin_of


def restore_best(setup: RunSetup, watchers: Watchers, backup: BackupInfo) -> None:
    """Put the best models of a backup into the run's save folder, once the searches for them are restored."""
    found: dict[BestBy, Best] = {"validation": watchers.validation.search.best}
    if watchers.rewards is not None:
        found["reward"] = watchers.rewards.search.best
    for by, best in found.items():
        if best.step is None:
            continue
        source = best_in(backup.path, by) or _kept_by_older_version(
            setup.run_dir, watchers.saving.best_ending(by), best.step
        )
        if source is None:
            continue
        try:
            watchers.saving.restore_best(by, source)
        except OSError as error:
            message = f"The best model of step {best.step} could not be restored. {words_of(error)[0]}"
            setup.log.emit(WarningRaised(message))


def _kept_by_older_version(run_dir: Path, ending: str, step: int) -> Path | None:
    """Return the best model of a run, or of the run it was forked from, if it is still that of a step.

    Backups of older versions do not have it. Its name begins as the result of its run, which a fork names otherwise.
    """
    origin = origin_of(run_dir)
    has_history = origin is not None and not origin.is_weights_only and step <= origin.step
    places = (run_dir, origin.run_dir) if origin is not None and has_history else (run_dir,)
    found = (path for place in places for path in sorted((place / "save").glob(f"*{ending}")))
    return next((path for path in found if _step_of(path) == step), None)


def _step_of(model: Path) -> int | None:
    """Return after which step a model was saved, from its metadata; None if it is not there or does not say."""
    for file in sorted(model.rglob("*.safetensors")) if model.is_dir() else [model]:
        with suppress(OSError, UnreadableFileError, KeyError, ValueError):
            metadata = read_checkpoint_header(file).metadata
            return int({**unfolded_metadata(metadata), **metadata}["ss_steps"])
    return None
