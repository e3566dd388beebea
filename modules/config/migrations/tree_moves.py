"""Move values out of an older tree as they are converted, so that the rest can be kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from modules.system.problem import DEFAULT_USED, Problem, shown

Tree = dict[str, Any]
Notes = list[Problem]

# OneTrainer's defaults (version 11) where they are not ours.
THEIR_DEFAULTS: Mapping[str, Any] = {
    "training_method": "FINE_TUNE",
    "epochs": 100,
    "learning_rate": 3e-6,
    "train_dtype": "FLOAT_16",
    "fallback_train_dtype": "BFLOAT_16",
    "ema_update_step_interval": 5,
    "lora_alpha": 1.0,
    "layer_filter_preset": "full",
    "cache_dir": "workspace-cache/run",
    "sample_image_format": "JPG",
    "non_ema_sampling": True,
    "output_dtype": "FLOAT_32",
    "output_model_destination": "models/model.safetensors",
    "include_train_config": "NONE",
}


def put(tree: Tree, path: str, value: object) -> None:
    """Set the value at a dotted path; missing objects on the way are created."""
    *folders, name = path.split(".")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[name] = value


def move(rest: Tree, result: Tree, source: str, path: str) -> None:
    """Move a value, if present, to a path of the result."""
    if source in rest:
        put(result, path, rest.pop(source))


def choose(
    rest: Tree, result: Tree, source: str, path: str, names: Mapping[str, str], notes: Notes, *, where: str = ""
) -> None:
    """Move a name, translated by `names`.

    An unknown name is reported under `where` or the path, and replaced by OneTrainer's default.
    """
    if source not in rest:
        return
    value = rest.pop(source)
    if isinstance(value, str) and value in names:
        put(result, path, names[value])
        return
    if (default := str(THEIR_DEFAULTS.get(source))) in names:
        put(result, path, names[default])
    if value not in (None, "NONE"):
        message = f"{source} = {shown(value)} is not supported here; {DEFAULT_USED}."
        notes.append(Problem(where or path, message, "warning"))


def pop_object(rest: Tree, key: str, notes: Notes, where: str) -> Tree:
    """Pop a nested object without its version; anything else is reported and counts as an empty one."""
    given = rest.pop(key, None)
    if isinstance(given, dict):
        return {k: v for k, v in given.items() if not k.startswith("__")}
    if given is not None:
        notes.append(
            Problem(where, f"{key} = {shown(given)} is not an object; the defaults are used instead.", "warning")
        )
    return {}


def put_back(rest: Tree, key: str, given: Tree) -> None:
    """Put the keys of a nested object that were not converted back in place."""
    if given:
        rest[key] = given


def number(value: object) -> float | None:
    """Return a value as the number OneTrainer would cast it to; None if it is not a finite number below 1e15."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        result = float(value)
    except (ValueError, OverflowError):
        return None
    if not abs(result) < 1e15:
        return None
    return int(result) if result == int(result) else result


def move_into(tree: Tree, source: str, holder: str, key: str, notes: Notes) -> bool:
    """Move a flat value of a tree into a nested object, which is copied first; return whether it was moved.

    A value that is already in the object is newer and kept; the flat one then stays in place and is reported with the
    other unknown keys.
    """
    given = tree.get(holder)
    if source not in tree or (isinstance(given, dict) and key in given):
        return False
    value = tree.pop(source)
    tree[holder] = {**own_object(tree, holder, notes), key: value}
    return True


# Our path of an object of theirs, if it is not one of the parts of the model.
_OUR_PATHS = {"optimizer": "training.optimizer", "embedding": "embeddings.words"}


def with_their_key(problem: Problem, raw: Tree) -> Problem:
    """Return a problem about a value with the file's own key before it, if exactly one key of the file has that value.

    Such a problem is only found after the value was moved, so it has the path of our setting.
    """
    value, found, _ = problem.message.partition(" is not valid (")
    if not found:
        return problem
    names = {name for name, leaf in _leaves(raw) if shown(leaf) == value}
    alike = names & set(problem.path.split("."))
    name, *others = alike or names or {""}
    return replace(problem, message=f"{name} = {problem.message}") if name and not others else problem


def _leaves(node: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value in a tree with its key."""
    yield name, node
    for key, inner in node.items() if isinstance(node, dict) else ():
        yield from _leaves(inner, key)
    for inner in node if isinstance(node, list) else ():
        yield from _leaves(inner, name)


def own_object(tree: Tree, key: str, notes: Notes) -> Tree:
    """Return a copy of a nested object, empty if it is missing; anything else is reported."""
    given = tree.get(key)
    if given is not None and not isinstance(given, dict):
        message = f"{key} = {shown(given)} is not an object; other keys of the file for it are used instead."
        notes.append(Problem(_OUR_PATHS.get(key, f"parts.{key}"), message, "warning"))
    return dict(given) if isinstance(given, dict) else {}


def rename(tree: Tree, source: str, target: str) -> None:
    """Rename a key of a tree, unless the new name is already present."""
    if source in tree and target not in tree:
        tree[target] = tree.pop(source)
