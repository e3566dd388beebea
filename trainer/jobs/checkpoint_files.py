"""The checkpoints of a run that can be sampled: its saves, its best models, its result, and its backups."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from modules.formats.headers import UnreadableFileError, read_header
from modules.settings.edit import replace_value
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.events import ModelSaved, RunStarted, ValidationFinished
from trainer.jobs.sample_sources import Save, config_of_run, saves_of
from trainer.run_folder.backup import fingerprint, list_backups
from trainer.run_folder.checkpoints import Checkpoint, Comparison, adapters_dir, write_comparison
from trainer.run_folder.destination import PATH, chosen_destination, may_write, note_destination, with_free_number
from trainer.run_folder.event_log import outlasts, read_events
from trainer.run_folder.result import model_files, results_of, sha256_of, use_as_result
from trainer.run_folder.run_lock import holder_of

_KINDS = ("save", "best", "best-reward", "result", "backup")
"""The kinds of models that a step can have, the first one of which is sampled; then any other."""
_KEY_CHARS = 12
_EARLIER = re.compile(r"-last(-\d+)?$")  # `use_as_result` names it


def checkpoints_of(run_dir: Path, *, has_backups: bool = True) -> list[Checkpoint]:
    """Return the models of a run by step, each step once, models of an unknown step last.

    A backup is sampled where nothing else of its step is left. Raises DarkroomError for a run without such models.
    """
    models = saves_of(run_dir)
    is_adapter = models.config.training.trains == "adapter"
    steps, losses = _steps_and_losses(run_dir)
    files: list[tuple[int, str, Path]] = []
    for save in models.saves:
        files.append((_step_of(save.path, save.step, steps), _kind_of(save), save.path))
    result = next((r for r in reversed(results_of(run_dir)) if not r.is_abandoned and r.is_unchanged()), None)
    if result is not None:
        files.append((_step_of(result.path, -1, steps), "result", result.path))
    if has_backups:
        newest = {backup.step: backup.path for backup in list_backups(run_dir)}  # of each step
        files += [(step, "backup", path) for step, path in newest.items()]
    by_name: dict[str, list[tuple[int, str, Path]]] = {}
    for step, kind, path in files:
        by_name.setdefault(f"step-{step:08d}" if step >= 0 else path.stem, []).append((step, kind, path))
    made = [_checkpoint(name, entries, losses, is_adapter=is_adapter) for name, entries in by_name.items()]
    return sorted(made, key=lambda c: (c.step < 0, c.step, c.name))


def identity_of(checkpoint: Checkpoint) -> str:
    """Return a text that changes when the weights of a checkpoint do: the hashes of an adapter and of the embeddings
    that were trained with it, the facts of a whole model.

    Raises OSError.
    """
    if checkpoint.backup and not checkpoint.path:
        return fingerprint(Path(checkpoint.backup))
    path = Path(checkpoint.path)
    if checkpoint.is_adapter and path.is_file():
        return " ".join(map(sha256_of, model_files(path)))
    files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
    return repr([(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files])


def adapter_file_of(backup: Path) -> Path:
    """Return the place of the adapter that is written from a backup. Raises OSError for a damaged one."""
    return adapters_dir(backup.parent.parent) / f"{backup.name}-{fingerprint(backup)[:_KEY_CHARS]}.safetensors"


def _steps_and_losses(run_dir: Path) -> tuple[dict[Path, int], dict[int, float]]:
    """Return the step of each model that a run has saved, and its validation losses by step, from its log."""
    steps: dict[Path, int] = {}
    losses: dict[int, float] = {}
    for event in read_events(run_dir):
        match event:
            case RunStarted():
                losses = {step: loss for step, loss in losses.items() if outlasts(step, event)}
            case ModelSaved():
                steps[Path(event.path)] = event.step
            case ValidationFinished():
                losses[event.step] = event.loss
    return steps, {step: loss for step, loss in losses.items() if math.isfinite(loss)}


def _step_of(path: Path, named: int, recorded: dict[Path, int]) -> int:
    """Return the step of a model: by its name, by its metadata, which a copy keeps, or by the log; -1 if unknown."""
    if named >= 0:
        return named
    try:
        stored = read_header(path).metadata.get("ss_steps", "") if path.is_file() else ""
    except UnreadableFileError:
        stored = ""
    return int(stored) if stored.isdecimal() else recorded.get(path, -1)


def _kind_of(save: Save) -> str:
    if save.step >= 0:
        return "save"
    return "earlier result" if _EARLIER.search(save.label) else save.label


def _checkpoint(
    name: str, entries: list[tuple[int, str, Path]], losses: dict[int, float], *, is_adapter: bool
) -> Checkpoint:
    def rank(entry: tuple[int, str, Path]) -> int:
        return _KINDS.index(entry[1]) if entry[1] in _KINDS else len(_KINDS)

    ordered = sorted(entries, key=rank)
    step, kind, path = ordered[0]
    kinds = tuple(dict.fromkeys(k for _, k, _ in ordered))
    places = ("", str(path)) if kind == "backup" else (str(path), "")
    measured = min(losses, key=lambda at: (abs(at - step), at), default=None) if step >= 0 else None
    loss = None if measured is None else losses[measured]
    return Checkpoint(name, step, kinds, *places, is_adapter=is_adapter, loss=loss, loss_step=measured)


@dataclass(frozen=True, slots=True)
class UsedCheckpoint:
    """A checkpoint that has become the result of its run: its place, and the new place of the model before, if any."""

    destination: Path
    kept: Path | None


def use_checkpoint(run_dir: Path, checkpoint: Checkpoint) -> UsedCheckpoint:
    """Make a checkpoint with a file the result of its run; the model before is kept in the run's "save" folder.

    It goes to the place of the run's result, or to a free name next to it if another run has written there since.
    Raises DarkroomError while the run trains, or if the file is gone, and OSError; the result is then unchanged.
    """
    if holder_of(run_dir) is not None:
        raise DarkroomError(f"The run {run_dir.name} is training.", advice="Wait until it has ended.")
    source = Path(checkpoint.path)
    if not source.exists():
        raise DarkroomError(f"{source} is gone.", advice="Compare the checkpoints again.")
    config = chosen_destination(config_of_run(run_dir), run_dir)
    asked = config.output.destination
    written = next((r for r in reversed(results_of(run_dir)) if not r.is_abandoned), None)
    if written is not None:
        config = replace_value(config, PATH, str(written.path))
    if not may_write(from_root(config.output.destination), run_dir):
        config = with_free_number(config, run_dir)
    destination = from_root(config.output.destination)
    step = checkpoint.step if checkpoint.step >= 0 else None
    kept = use_as_result(source, destination, run_dir=run_dir, is_kept=True, step=step)
    if not any(result.path == destination.absolute() for result in results_of(run_dir)):
        note_destination(run_dir, asked=asked, chosen=config.output.destination)  # of a run that was stopped
    return UsedCheckpoint(destination, kept)


def with_current_kinds(comparison: Comparison) -> Comparison:
    """Write and return a comparison with what there is now of each checkpoint: another one may be the result."""
    kinds = {c.name: c.kinds for c in checkpoints_of(comparison.run_dir)}
    checkpoints = tuple(replace(c, kinds=kinds.get(c.name, c.kinds)) for c in comparison.checkpoints)
    current = replace(comparison, checkpoints=checkpoints)
    write_comparison(current)
    return current
