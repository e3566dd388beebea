"""The versions of the program and of the packages that decide what a run computes."""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from modules.system.paths import PROGRAM_ROOT
from modules.system.regular_files import read_regular

PACKAGES = (
    "torch",
    "diffusers",
    "transformers",
    "tokenizers",
    "safetensors",
    "peft",
    "accelerate",
    "numpy",
    "pillow",
    "bitsandbytes",
    "triton",
    "prodigyopt",
    "prodigy-plus-schedule-free",
    "schedulefree",
    "dadaptation",
    "lion-pytorch",
    "adv-optm",
    "pytorch-optimizer",
)
"""Packages that read models and images, compute, or step: with another version of one, a run may round otherwise."""
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_MAX_BYTES = 10_000_000  # of a file of git


@cache
def versions_here() -> Mapping[str, str]:
    """Return the versions of Python, of the installed ones of `PACKAGES`, and of the program with its commit."""
    versions = dict[str, str]()
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    versions |= {"python": platform.python_version(), "darkroom": program_version()}
    if commit := commit_of(PROGRAM_ROOT):
        versions["darkroom commit"] = commit
    return versions


def program_version() -> str:
    """Return the version of the program."""
    project = tomllib.loads((PROGRAM_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def commit_of(folder: Path) -> str:
    """Return the commit that is checked out in a git repository; empty for any other folder.

    Git itself is not asked: it may not be installed. Uncommitted changes are not noticed.
    """
    try:
        git = _git_folder(folder / ".git")
        head = _text(git / "HEAD")
        if not head.startswith("ref:"):
            return head if _COMMIT.fullmatch(head) else ""
        name, common = head.removeprefix("ref:").strip(), _common_folder(git)
        place = next((p for p in (git / name, common / name) if p.is_file()), None)
        commit = _text(place) if place is not None else _packed_reference(common, name)
        return commit if _COMMIT.fullmatch(commit) else ""
    except (OSError, ValueError):
        return ""


def _git_folder(place: Path) -> Path:
    """Return git's folder; a worktree has a file that names its own."""
    return place.parent / _text(place).removeprefix("gitdir:").strip() if place.is_file() else place


def _common_folder(git: Path) -> Path:
    """Return the folder with the branches of all worktrees."""
    return git / _text(git / "commondir") if (git / "commondir").is_file() else git


def _packed_reference(common: Path, name: str) -> str:
    if not (common / "packed-refs").is_file():
        return ""
    rows = (line.split(" ") for line in _text(common / "packed-refs").splitlines())
    return next((row[0] for row in rows if len(row) == 2 and row[1] == name), "")


def _text(file: Path) -> str:
    return read_regular(file, _MAX_BYTES).decode("utf-8", errors="replace").strip()
