"""Defaults of OneTrainer's that changed with no step of its own: a silent file meant the one of its day.

Where the age of the file is proven, the old default is written into the tree. Where it is not, today's stands, and a
note says so if it matters. It runs after the steps, on a tree in the keys of version 11. A part's data type NONE
meant float32 where the file has no type for the whole model. Two changes need nothing here: the old bias of the noise
is restored by the step 3 to 4, and the base model's new address is the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from modules.config.migrations.eras import Era
from modules.config.migrations.onetrainer_08_to_09 import has_prior
from modules.config.migrations.onetrainer_keys import PARTS
from modules.config.migrations.taking import Notes, Tree, number
from modules.system.problem import Problem


@dataclass(frozen=True, slots=True)
class _Changed:
    """A default that changed: with which version, of what, where that is here, from what to what, and when a silent
    file minds.
    """

    in_version: int
    path: str
    ours: str
    before: Any
    now: Any
    matters: Callable[[Tree], bool]


def _is_cloud_silent(tree: Tree) -> bool:
    cloud = tree.get("cloud")
    return isinstance(cloud, dict) and cloud.get("enabled") is True and "create" not in cloud


def _uses_huber(tree: Tree) -> bool:
    return "huber_delta" not in tree and bool(number(tree.get("huber_strength")))


def _says_none(part_name: str, tree: Tree) -> bool:
    part = tree.get(part_name)
    return isinstance(part, dict) and part.get("weight_dtype") == "NONE"


def _is_prior_unweighted(tree: Tree) -> bool:
    return has_prior(tree) and not {"loss_weight_fn", "loss_weight_strength"} & tree.keys()


_CHANGES = (
    _Changed(3, "loss_weight_fn", "training.loss.weighting", "P2", "CONSTANT", _is_prior_unweighted),
    _Changed(3, "loss_weight_strength", "training.loss.gamma", 1.0, 5.0, _is_prior_unweighted),
    _Changed(9, "huber_delta", "training.loss.huber_delta", 0.1, 1.0, _uses_huber),
    *(
        _Changed(10, f"{name}.weight_dtype", f"parts.{name}.dtype", "FLOAT_32", "FLOAT_32", partial(_says_none, name))
        for name in PARTS
    ),
    _Changed(11, "cloud.create", "cloud.create", True, False, _is_cloud_silent),
)


def with_old_defaults(tree: Tree, era: Era, notes: Notes) -> Tree:
    """Return the tree with the defaults that it was written under, where its era proves them and they matter."""
    result = dict(tree)
    # Judged on the tree as it came: a default that was just written does not speak for the next.
    for change in [c for c in _CHANGES if c.matters(tree)]:
        if era.is_before(change.in_version):
            _write(result, change)
        elif era.may_be_before(change.in_version) and change.before != change.now:
            message = (
                f"{change.path} is not in the file, which may be older than OneTrainer's version {change.in_version}: "
                f"it was {change.before!r} by default then; today's {change.now!r} stands."
            )
            notes.append(Problem(change.ours, message, "info"))
    return result


def _write(tree: Tree, change: _Changed) -> None:
    folder, _, key = change.path.rpartition(".")
    if folder:
        tree[folder] = {**tree[folder], key: change.before}
    else:
        tree[key] = change.before
