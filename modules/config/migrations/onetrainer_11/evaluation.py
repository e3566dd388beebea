"""OneTrainer's validation, samples, backups and saves."""

from __future__ import annotations

from modules.config.migrations.onetrainer_11.tables import every, move_all, period
from modules.config.migrations.tree_moves import Notes, Tree, choose, number, put
from modules.system.problem import Problem, shown

_PERIODS = {
    "sample_after": ("sampling.every", (10, "MINUTE")),
    "backup_after": ("backup.every", (30, "MINUTE")),
    "save_every": ("backup.save_every", (0, "NEVER")),
    "validate_after": ("validation.every", (1, "EPOCH")),
}
_SKIPS = {
    "sample_skip_first": ("sampling.skip_first", "sample_after_unit", "MINUTE"),
    "save_skip_first": ("backup.save_skip_first", "save_every_unit", "NEVER"),
}
_PLAIN = {
    "samples_to_tensorboard": "sampling.to_tensorboard",
    "non_ema_sampling": "sampling.without_average_too",
    "backup_before_save": "backup.at_end",
    "save_filename_prefix": "backup.save_prefix",
    "concept_file_name": "concepts_file",
    "sample_definition_file_name": "sampling.prompts_file",
}


def evaluation_of(rest: Tree, result: Tree, notes: Notes, steps_per_update: int) -> None:
    """Convert the settings of validation, samples, backups and saves."""
    for source, (path, unit_key, default_unit) in _SKIPS.items():  # in the unit of the period they skip
        _skip(rest, source, path, rest.get(unit_key, default_unit), steps_per_update, result, notes)
    for source, (path, default) in _PERIODS.items():
        put(result, path, every(rest, source, steps_per_update, default, notes, path))
    if result["sampling"]["every"]["unit"] == "never":  # then OneTrainer generates no samples at all
        put(result, "sampling.at_start", False)
        put(result, "sampling.at_end", False)
    if not rest.pop("validation", False):
        put(result, "validation.every", {"unit": "never"})
    choose(rest, result, "sample_image_format", "sampling.image_format", {"PNG": "png", "JPG": "jpg"}, notes)
    count = rest.pop("rolling_backup_count", 3)
    put(result, "backup.keep", count if rest.pop("rolling_backup", False) else 0)
    for name in ("concept_file_name", "sample_definition_file_name"):
        if not isinstance(rest.get(name), str):
            rest.pop(name, None)
    move_all(rest, result, _PLAIN)


def _skip(rest: Tree, source: str, path: str, unit: object, steps_per_update: int, result: Tree, notes: Notes) -> None:
    given = rest.pop(source, 0)
    n = number(given)
    if n is None:
        notes.append(Problem(path, f"{source} = {shown(given)} is not a number; nothing is skipped.", "warning"))
    elif n > 0 and unit in ("EPOCH", "STEP", "SECOND", "MINUTE", "HOUR"):
        put(result, path, period(n, str(unit), steps_per_update))
