"""Settings of our own earlier files that no longer exist: dropped, with a note where they had a value of their own.

The version of the files is the same: nothing else changed.
"""

from __future__ import annotations

from modules.config.migrations.onetrainer_optimizers import drop_removed
from modules.config.migrations.tree_moves import Notes, Tree
from modules.optim.registry import OPTIMIZERS


def without_removed(tree: Tree, notes: Notes) -> Tree:
    """Return one of our trees without the settings of optimizers that no longer exist."""
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
