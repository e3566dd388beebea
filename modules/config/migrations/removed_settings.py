"""Settings of our own earlier files that no longer exist are dropped, with a note where they had a value of their own;
switches that became choices keep their value.

The version of the files is the same: nothing else changed.
"""

from __future__ import annotations

from modules.config.migrations.onetrainer_optimizers import drop_removed
from modules.config.migrations.tree_moves import Notes, Tree
from modules.optim.registry import OPTIMIZERS
from modules.system.problem import Problem

_DUMP_NOTE = (
    "Debug dump does not exist here. To see what the trainer reads of the images, use the preview of a concept or "
    "python -m trainer preview; for a bug report, Debug bundle in the Window menu or python -m trainer bundle."
)


def without_removed(tree: Tree, notes: Notes) -> Tree:
    """Return one of our trees without the settings that no longer exist."""
    tree = without_debug_dump(tree, notes)
    _switch_to_choice(tree, "model", "channels_last")
    training = tree.get("training")
    optimizer = training.get("optimizer") if isinstance(training, dict) else None
    if isinstance(optimizer, dict) and isinstance(name := optimizer.get("name"), str) and name in OPTIMIZERS:
        drop_removed(optimizer, name, notes, "training.optimizer")
    remembered = tree.get("remembered")
    others = remembered.get("training.optimizer") if isinstance(remembered, dict) else None
    for other, settings in others.items() if isinstance(others, dict) else ():
        if other in OPTIMIZERS and isinstance(settings, dict):
            drop_removed(settings, other, [], "training.optimizer")
    return tree


def without_debug_dump(tree: Tree, notes: Notes) -> Tree:
    """Return one of our trees without the settings of OneTrainer's debug dump."""
    general = tree.get("general")
    if isinstance(general, dict):
        general.pop("debug_dir", None)
        if general.pop("debug_dump", False) is True:
            notes.append(Problem("general", _DUMP_NOTE, "info"))
    return tree


def _switch_to_choice(tree: Tree, section: str, key: str) -> None:
    """Replace true and false by "on" and "off", in place."""
    settings = tree.get(section)
    if isinstance(settings, dict) and isinstance(value := settings.get(key), bool):
        settings[key] = "on" if value else "off"
