"""Our version 4 to version 5: the losses that are mixed are entries of `training.loss.mix`, each with its own settings.

They were fields next to each other, with one delta, schedule and form for both Huber losses. Every value has the same
meaning as before. Entries of the load report get the new paths.
"""

from __future__ import annotations

from dataclasses import replace

from modules.config.migrations.tree_moves import Notes, Tree
from modules.system.problem import Problem

_LOSSES = ("mse", "mae", "log_cosh", "huber", "smooth_l1")
_WITH_DELTA = ("huber", "smooth_l1")
_OF_DELTA = {"huber_delta": "delta", "huber_schedule": "schedule", "huber_form": "form"}
_SECTION = "training.loss"
_NEW_PATHS = {
    **{f"{_SECTION}.{name}_strength": f"{_SECTION}.mix.{name}.strength" for name in _LOSSES},
    **{f"{_SECTION}.{old}": f"{_SECTION}.mix.huber.{new}" for old, new in _OF_DELTA.items()},
}


def to_darkroom_5(tree: Tree, notes: Notes) -> Tree:
    """Return a tree of our version 4 with the losses in the mix; paths in `notes` are renamed in place.

    Delta, its schedule and its form go to the Huber losses that have a strength, or to huber's if neither has one. A
    key that has its new place takes precedence.
    """
    notes[:] = [_with_new_path(note) for note in notes]
    training = tree.get("training")
    loss = training.get("loss") if isinstance(training, dict) else None
    if not isinstance(training, dict) or not isinstance(loss, dict):
        return tree
    loss = dict(loss)
    mix = loss.get("mix", {})
    if not isinstance(mix, dict):
        return tree
    of_delta = {new: loss.pop(old) for old, new in _OF_DELTA.items() if old in loss}
    strengths = {name: loss.pop(f"{name}_strength") for name in _LOSSES if f"{name}_strength" in loss}
    added = {name: {"strength": strength} for name, strength in strengths.items()}
    if of_delta:
        for name in [name for name in _WITH_DELTA if strengths.get(name)] or ["huber"]:
            added[name] = {**added.get(name, {}), **of_delta}
    if added:
        loss["mix"] = _merged(added, mix)
    return {**tree, "training": {**training, "loss": loss}}


def _merged(added: Tree, mix: Tree) -> Tree:
    """Return the entries of a mix with those added that it lacks; an entry that is not an object stays as it is."""
    result = {**added, **mix}
    for name, entry in mix.items():
        if isinstance(entry, dict):
            result[name] = {**added.get(name, {}), **entry}
    return result


def _with_new_path(note: Problem) -> Problem:
    return replace(note, path=_NEW_PATHS.get(note.path, note.path))
