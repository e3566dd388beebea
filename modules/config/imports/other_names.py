"""The names that OneTrainer and kohya have for our settings, found by converting each of their keys by itself.

There is no table: migrating or importing a key shows which setting it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from modules.config.imports.kohya_settings import convert_arguments
from modules.config.migrations.chain import migrate
from modules.config.migrations.onetrainer_keys import KEYS, NEWEST
from modules.config.migrations.tree_moves import Tree
from modules.system.problem import Problem

_WORD = "probe of a name"  # passes through as a text, and is reported where a choice is expected
_PROBES: tuple[object, ...] = (_WORD, 7, True, False)  # one of the two is the default
_MAX_PATHS = 3  # a key that changes more settings is not a name of any one of them
# Settings without which others are not read.
_ONETRAINER_CONTEXT: Tree = {"__version": NEWEST, "rolling_backup": True, "learning_rate_scheduler": "COSINE"}
_KOHYA_CONTEXT: Tree = {"network_module": "networks.lora"}
_NO_SETTINGS = ("unknown", "darkroom_version")
_NOT_NAMES = ("n", "unit", "name")  # the last step of a path into a period or a choice


@dataclass(frozen=True, slots=True)
class OtherName:
    """A key of another program."""

    program: str
    key: str


@cache
def other_names() -> Mapping[str, tuple[OtherName, ...]]:
    """Return the other programs' keys by the path of our setting, which lacks the name of a variant."""
    by_path: defaultdict[str, list[OtherName]] = defaultdict(list)
    for program, keys, convert in (
        ("OneTrainer", sorted(KEYS), _from_onetrainer),
        ("kohya", _kohya_keys(), _from_kohya),
    ):
        base, _ = convert({})
        plain = _flat(base)
        for key in keys:
            for path in _paths_of(key, plain, convert):
                by_path[path].append(OtherName(program, key))
    return {path: tuple(dict.fromkeys(names)) for path, names in by_path.items()}


Convert = Callable[[Tree], tuple[Tree, list[Problem]]]


def _from_onetrainer(given: Tree) -> tuple[Tree, list[Problem]]:
    tree, notes, _ = migrate({**_ONETRAINER_CONTEXT, **given})
    return tree, notes


def _from_kohya(given: Tree) -> tuple[Tree, list[Problem]]:
    notes: list[Problem] = []
    return convert_arguments({**_KOHYA_CONTEXT, **given}, notes), notes


def _paths_of(key: str, plain: Mapping[str, object], convert: Convert) -> Iterable[str]:
    """Return the paths of the settings that a key sets."""
    paths: dict[str, None] = {}
    for probe in _PROBES:
        tree, notes = convert({key: probe})
        changed = [path for path, value in _flat(tree).items() if plain.get(path) != value]
        if not changed:
            changed = [note.path for note in notes if note.path and _WORD in note.message]
        if len(changed) <= _MAX_PATHS:
            paths.update(dict.fromkeys(_setting(path) for path in changed))
    return paths


def _setting(path: str) -> str:
    """Return the path of the setting that a path in a tree belongs to."""
    names = path.split(".")
    if names[0] == "remembered":  # of a variant that is not chosen: remembered.adapter.lokr.factor
        names = [*names[1:-2], names[-1]]
    if names[-1] in _NOT_NAMES:
        names.pop()
    return ".".join(names)


def _flat(tree: Tree, above: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in tree.items():
        path = f"{above}.{name}" if above else name
        if path in _NO_SETTINGS:
            continue
        if isinstance(value, dict) and value:
            flat.update(_flat(value, path))
        else:
            flat[path] = value
    return flat


class _KeyRecorder(dict[str, Any]):
    """A dict of settings that records which keys are looked up."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.looked_up: dict[str, None] = {}

    def pop(self, key: str, *default: Any) -> Any:
        """Note the key, and pop it."""
        self.looked_up[key] = None
        return super().pop(key, *default)

    def get(self, key: str, default: Any = None) -> Any:
        """Note the key, and return its value."""
        self.looked_up[key] = None
        return super().get(key, default)


def _kohya_keys() -> Iterator[str]:
    recorder = _KeyRecorder(_KOHYA_CONTEXT)
    convert_arguments(recorder, [])
    return iter(recorder.looked_up)
