"""Resuming a run: settings that differ from those it was started with; and other runs that train at the moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from modules.config.codec import load_file
from modules.config.compare import changed_learning, fixed_on_resume
from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.settings.field import Section
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import Problem, quote
from trainer.preflight.moved_inputs import moved_inputs, problems_of_inputs
from trainer.run_folder.backup import find_backup
from trainer.run_folder.records import running_in
from trainer.run_folder.run_lock import in_use

_NOTHING = "nothing"


def problems_of_resume(config: Config, place: Path) -> Iterator[Problem]:
    """Yield the reasons against resuming from a backup, a run's folder or a workspace, each by its field.

    Learning rates, their schedule, the weight decay and the places of files that have been moved may change: a warning
    names the old and the new value. Models that have been moved must have the same content.

    File sizes and the config of the backup are checked; the run itself verifies the hashes.
    """
    try:
        backup = find_backup(place)
    except DarkroomError as error:
        yield Problem("", error.message, advice=error.advice)
        return
    file = backup.path / "config.json"
    loaded = load_file(file)
    if any(p.severity == "error" and not p.path for p in loaded.problems):
        yield Problem("", f"The settings of the run in {file} cannot be read.", advice="Start a new run.")
        return
    yield from problems_of_inputs(backup, config)
    for path in () if moved_inputs(loaded.config, config) else fixed_on_resume(loaded.config, config):
        before, now = (_value(c, path) for c in (loaded.config, config))
        yield Problem(
            path,
            f"The run was started with {before}, and the setting is now {now}. It cannot change when a run is resumed.",
            advice="Set it back, or start a new run.",
        )

    for path, before, now in learning_changes(loaded.config, config):
        yield Problem(
            path,
            f"The run was started with {before}, and resumes with {now}.",
            "warning",
            "Set it back if this is not intended.",
        )


def problems_of_other_runs(config: Config, run_dir: Path | None) -> Iterator[Problem]:
    """Yield the runs that train in the config's workspace at the moment: an error if the run to resume is among them.

    `run_dir` is the folder of that run; None for a new run.
    """
    if not config.general.workspace_dir.strip():
        return
    for other, holder in running_in(from_root(config.general.workspace_dir)):
        if run_dir is not None and other.resolve() == run_dir.resolve():
            error = in_use(run_dir, holder)
            yield Problem("", error.message, advice=error.advice)
        else:
            yield Problem(
                "general.workspace_dir",
                f"Another run is training at the moment: {other.name}. Both share the memory and the speed of "
                "this machine.",
                "warning",
                "Wait until it has ended, stop it, or add this config to the queue.",
                "queue",
            )


def learning_changes(before: Config, now: Config) -> Iterator[tuple[str, str, str]]:
    """Yield the path, the old and the new value of each changed learning rate, schedule setting and weight decay."""
    fixed = fixed_on_resume(before, now)
    for path in changed_learning(before, now):
        old, new = _value(before, path), _value(now, path)
        is_fixed = any(path == p or path.startswith(f"{p}.") for p in fixed)  # of another schedule
        if not is_fixed and _NOTHING not in (old, new):
            yield path, old, new


def _value(config: Config, path: str) -> str:
    try:
        value = get_path(config, path)
    except KeyError:  # a field of a variant that this config does not use
        return _NOTHING
    if isinstance(value, Section):  # another choice, such as another method
        return quote(get_path(value, "name"))
    return f"{len(value)} of them" if isinstance(value, tuple) else quote(value)
