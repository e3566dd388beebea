"""Move values out of an older tree as they are converted, so that the rest can be kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from modules.system.problem import DEFAULT_USED, Problem, quote

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
    "cache_dir": "workspace-cache/run",
    "sample_image_format": "JPG",
    "non_ema_sampling": True,
    "output_dtype": "FLOAT_32",
    "output_model_destination": "models/model.safetensors",
    "include_train_config": "NONE",
}


class MovedKey(str):
    """A key of a converted tree that remembers the key that its value has in the user's file.

    It equals any other key of this name, so trees can be copied and merged as usual. Only the report of an invalid
    value, after the conversion, reads `source`.
    """

    __slots__ = ("source",)
    source: str

    def __new__(cls, name: str, source: str = "") -> Self:
        key = super().__new__(cls, name)
        key.source = source
        return key


def source_of(tree: Tree, key: str) -> str:
    """Return the key that a value of a tree has in the user's file; empty if it was not moved."""
    return next((k.source for k in tree if k == key and isinstance(k, MovedKey)), "")


def put(tree: Tree, path: str, value: object, *, source: str = "") -> None:
    """Set the value at a dotted path; missing objects on the way are created. `source` is its key in the file."""
    *folders, name = path.split(".")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree.pop(name, None)
    tree[MovedKey(name, source) if source else name] = value


def move(rest: Tree, result: Tree, source: str, path: str) -> None:
    """Move a value, if present, to a path of the result, with a key that remembers the source."""
    if source in rest:
        theirs = source_of(rest, source) or source
        put(result, path, rest.pop(source), source=theirs)


def move_or(rest: Tree, result: Tree, source: str, path: str, default: object) -> None:
    """Move a value to a path of the result, or put the default there."""
    put(result, path, default)
    move(rest, result, source, path)


def with_defaults(tree: Tree, defaults: Mapping[str, Any]) -> Tree:
    """Return a tree with the defaults of the keys that it lacks; the keys that it has remember their source."""
    return {**tree, **{key: value for key, value in defaults.items() if key not in tree}}


def choose(
    rest: Tree, result: Tree, source: str, path: str, names: Mapping[str, str], notes: Notes, *, where: str = ""
) -> None:
    """Move a name, translated by `names`.

    An unknown name is reported under `where` or the path, and replaced by OneTrainer's default.
    """
    if source not in rest:
        return
    theirs = source_of(rest, source) or source
    value = rest.pop(source)
    if isinstance(value, str) and value in names:
        put(result, path, names[value])
        return
    if (default := str(THEIR_DEFAULTS.get(source))) in names:
        put(result, path, names[default])
    if value not in (None, "NONE"):
        message = f"{theirs} = {quote(value)} is not supported here; {DEFAULT_USED}."
        notes.append(Problem(where or path, message, "warning"))


def pop_switch(rest: Tree, source: str, notes: Notes, where: str, *, default: bool = False) -> bool:
    """Pop a switch; anything but true or false is reported under `where`, and the default is used."""
    theirs = source_of(rest, source) or source
    value = rest.pop(source, default)
    if value in (True, False) and isinstance(value, int | float):
        return bool(value)
    if value is not None:
        message = f"{theirs} = {quote(value)} is not true or false; {quote(default)} is used instead."
        notes.append(Problem(where, message, "warning"))
    return default


def pop_object(rest: Tree, key: str, notes: Notes, where: str) -> Tree:
    """Pop a nested object without its version; anything else is reported and counts as an empty one."""
    given = rest.pop(key, None)
    if isinstance(given, dict):
        return {k: v for k, v in given.items() if not k.startswith("__")}
    if given is not None:
        notes.append(
            Problem(where, f"{key} = {quote(given)} is not an object; the defaults are used instead.", "warning")
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
    tree[holder] = {**copy_object(tree, holder, notes), MovedKey(key, source): value}
    return True


# Our path of an object of theirs, if it is not one of the parts of the model.
_OUR_PATHS = {"optimizer": "training.optimizer", "embedding": "embeddings.words"}


def copy_object(tree: Tree, key: str, notes: Notes) -> Tree:
    """Return a copy of a nested object, empty if it is missing; anything else is reported."""
    given = tree.get(key)
    if given is not None and not isinstance(given, dict):
        message = f"{key} = {quote(given)} is not an object; other keys of the file for it are used instead."
        notes.append(Problem(_OUR_PATHS.get(key, f"parts.{key}"), message, "warning"))
    return dict(given) if isinstance(given, dict) else {}


def rename_key(key: str, name: str) -> str:
    """Return a key with another name and the same source."""
    return MovedKey(name, key.source) if isinstance(key, MovedKey) else name


def rename(tree: Tree, source: str, target: str) -> None:
    """Rename a key of a tree, unless the new name is already present."""
    if source in tree and target not in tree:
        move(tree, tree, source, target)
