"""Going on with a run: what of the config differs from the one it was begun with, and may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from modules.config.codec import load_file
from modules.config.compare import fixed_on_resume
from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.system.errors import DarkroomError
from modules.system.problem import Problem, shown
from trainer.run_folder.backup import find_backup


def problems_of_resume(config: Config, place: Path) -> Iterator[Problem]:
    """Yield what forbids to go on from a backup, a run's folder or a workspace, each setting by its field.

    Sizes and the config of the backup are looked at; its hashes are for the run itself.
    """
    try:
        backup = find_backup(place)
    except DarkroomError as error:
        yield Problem("", error.message, advice=error.advice)
        return
    file = backup.path / "config.json"
    loaded = load_file(file)
    if any(p.severity == "error" and not p.path for p in loaded.problems):
        yield Problem("", f"The settings the run was begun with, {file}, cannot be read.", advice="Start a new run.")
        return
    for path in fixed_on_resume(loaded.config, config):
        before, now = (_value(c, path) for c in (loaded.config, config))
        yield Problem(
            path,
            f"The run was begun with {before}, and now it is {now}: this cannot change on the way.",
            advice="Set it back, or start a new run.",
        )


def _value(config: Config, path: str) -> str:
    try:
        value = get_path(config, path)
    except KeyError:  # a field of the variant that is not chosen in this one
        return "nothing"
    return f"{len(value)} of them" if isinstance(value, tuple) else shown(value)
