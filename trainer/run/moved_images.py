"""Images that were moved since a backup: they are the same ones at another place, or the run may not continue."""

from __future__ import annotations

from dataclasses import replace

from modules.config.codec import load_file
from modules.config.schema import Config
from modules.data.plans import EpochPlans
from modules.settings.edit import get_path
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import list_first
from trainer.preflight.moved_inputs import moved_inputs
from trainer.run.checkpoint import SavedState
from trainer.run_folder.backup import BackupInfo

_MAX_NAMED = 3


def follow_moved_images(
    backup: BackupInfo, saved: SavedState, config: Config, *, training: EpochPlans, validation: EpochPlans
) -> SavedState:
    """Return the state of a backup with the fingerprints that its images have at their present places.

    Raises DarkroomError if the training images there are others. Other validation images are reported as changed.
    """
    of_run = load_file(backup.path / "config.json").config
    moved = moved_inputs(of_run, config)
    if not moved:
        return saved
    before_by_now = {str(from_root(now)): str(from_root(get_path(of_run, path))) for path, now in moved.items()}
    plan, before = training.fingerprint, training.fingerprint_before(before_by_now)
    if before != plan and saved.plan != before:
        folders = [now for path, now in moved.items() if path.startswith("concepts.")]
        raise DarkroomError(
            f"The run was started with other images or captions than those in {list_first(folders, _MAX_NAMED)}.",
            advice="Choose the folder that they were moved to, with the files as they were, or start a new run.",
        )
    validated = dict(saved.validation)
    if best := validated.get("best"):
        then, now = validation.fingerprint_before(before_by_now), validation.fingerprint
        validated["best"] = {**best, "measured_on": best["measured_on"].replace(then, now)}
    return replace(saved, plan=plan if before != plan else saved.plan, validation=validated)
