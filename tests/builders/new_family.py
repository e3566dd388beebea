"""Lays the folder of a new family and its tests: `python -m tests.builders.new_family hunyuan --like qwen_image`.

They are a copy of the family that is most alike, under the new name, and registered: it loads and trains the
neighbour's model from the first minute. What is left to change is what differs between the two models.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from modules.families.registry import FAMILIES
from modules.system.paths import PROGRAM_ROOT

_FAMILIES, _BUILDERS = Path("modules/families"), Path("tests/builders")
_LISTS = (_FAMILIES / "registry.py", _BUILDERS / "flow_models.py")
_OF_LIBRARIES = re.compile(r"((?:diffusers|transformers)\.[\w.:]+)")
"""Names of modules in libraries, which a copy has, too."""


def lay(name: str, like: str, root: Path = PROGRAM_ROOT) -> tuple[Path, ...]:
    """Copy a family under a new name and register it; return what is new. Raises ValueError for a bad name."""
    if name in FAMILIES or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"{name!r} is taken, or is not made of small letters, digits and underscores.")
    names = _spellings(like, name)
    copies = zip(_paths(like), _paths(name), strict=True)
    made = [_copied(root / source, root / target, names) for source, target in copies]
    for folder in tuple((made[0] / "configs").iterdir()):
        folder.rename(folder.with_name(_renamed(folder.name, names)))
    for path in _LISTS:
        lines = (root / path).read_text(encoding="utf-8").splitlines(keepends=True)
        (root / path).write_text("".join(line + _twin(line, names) for line in lines), encoding="utf-8")
    return tuple(made)


def _paths(name: str) -> tuple[Path, ...]:
    return _FAMILIES / name, _BUILDERS / f"{name}.py", Path(f"tests/training/test_{name}.py")


def _spellings(like: str, name: str) -> Mapping[str, str]:
    """Return the spellings of the neighbour as patterns, each with that of the new family: `sd3`, `SD3`, `Sd3`."""
    theirs = FAMILIES[like].settings.__name__.removesuffix("Settings")
    ours = "".join(word.capitalize() for word in name.split("_"))
    return {
        rf"(?<![A-Za-z]){like}(?![A-Za-z0-9])": name,
        rf"\b{like.upper()}\b": name.upper(),
        rf"\b{theirs}(?=(Settings)?\b)": ours,
    }


def _copied(source: Path, target: Path, names: Mapping[str, str]) -> Path:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)
    for file in target.rglob("*.py") if target.is_dir() else [target]:
        file.write_text(_renamed(file.read_text(encoding="utf-8"), names), encoding="utf-8")
    return target


def _renamed(text: str, names: Mapping[str, str]) -> str:
    pieces = _OF_LIBRARIES.split(text)
    for theirs, ours in names.items():
        pieces[::2] = [re.sub(theirs, ours, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _twin(line: str, names: Mapping[str, str]) -> str:
    """Return the line of a list for the new family, if it is the neighbour's."""
    renamed = _renamed(line, names)
    return renamed if renamed != line else ""


def _with_tests() -> list[str]:
    """Return the families that have all that is copied."""
    return [name for name in sorted(FAMILIES) if all((PROGRAM_ROOT / path).exists() for path in _paths(name))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="the family's name in configs and folders")
    parser.add_argument("--like", required=True, choices=_with_tests(), help="the family to begin with")
    given = parser.parse_args()
    lay(given.name, given.like)
