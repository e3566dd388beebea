"""OneTrainer's defaults that changed without a migration step: a missing key means the default of the file's version.

If the version of the file is certain, the old default is written into the tree. If not, the current default is used,
and a note reports it where it matters. This runs after the steps, on a tree with the keys of version 11. A part's
weight dtype NONE meant float32 if the file has no dtype for the whole model. Two changes need nothing here: the old
noising bias is restored by the step 3 to 4, and the base model's new address is the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from modules.config.migrations.eras import Era
from modules.config.migrations.onetrainer_keys import PARTS
from modules.config.migrations.onetrainer_steps import has_prior
from modules.config.migrations.tree_moves import Notes, Tree, number
from modules.system.problem import Problem


@dataclass(frozen=True, slots=True)
class _Changed:
    """A default that changed: the version, OneTrainer's path and ours, the old and the new default, and the condition
    under which a missing key matters.
    """

    in_version: int
    path: str
    ours: str
    before: Any
    now: Any
    matters: Callable[[Tree], bool]


def _lacks_cloud_create(tree: Tree) -> bool:
    cloud = tree.get("cloud")
    return isinstance(cloud, dict) and cloud.get("enabled") is True and "create" not in cloud


def _lacks_huber_delta(tree: Tree) -> bool:
    return "huber_delta" not in tree and bool(number(tree.get("huber_strength")))


def _has_no_dtype(part_name: str, tree: Tree) -> bool:
    part = tree.get(part_name)
    return isinstance(part, dict) and part.get("weight_dtype") == "NONE"


def _lacks_prior_weighting(tree: Tree) -> bool:
    return has_prior(tree) and not {"loss_weight_fn", "loss_weight_strength"} & tree.keys()


_CHANGES = (
    _Changed(3, "loss_weight_fn", "training.loss.weighting", "P2", "CONSTANT", _lacks_prior_weighting),
    _Changed(3, "loss_weight_strength", "training.loss.gamma", 1.0, 5.0, _lacks_prior_weighting),
    _Changed(9, "huber_delta", "training.loss.huber_delta", 0.1, 1.0, _lacks_huber_delta),
    *(
        _Changed(
            10, f"{name}.weight_dtype", f"parts.{name}.dtype", "FLOAT_32", "FLOAT_32", partial(_has_no_dtype, name)
        )
        for name in PARTS
    ),
    _Changed(11, "cloud.create", "onetrainer.cloud.create", True, False, _lacks_cloud_create),
)


def with_old_defaults(tree: Tree, era: Era, notes: Notes) -> Tree:
    """Return the tree with the defaults of its own version, where that version is certain and they matter."""
    result = dict(tree)
    # Conditions are checked on the original tree: a default that was just written must not affect the next.
    for change in [c for c in _CHANGES if c.matters(tree)]:
        if era.is_before(change.in_version):
            _write(result, change)
        elif era.may_be_before(change.in_version) and change.before != change.now:
            message = (
                f"{change.path} is not in the file. Before OneTrainer's config version {change.in_version} its "
                f"default was {change.before!r}; the current default, {change.now!r}, is used."
            )
            notes.append(Problem(change.ours, message, "info"))
    return result


def _write(tree: Tree, change: _Changed) -> None:
    folder, _, key = change.path.rpartition(".")
    if folder:
        tree[folder] = {**tree[folder], key: change.before}
    else:
        tree[key] = change.before
