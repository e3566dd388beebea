"""The name of a fork: that of its result, so that it does not replace the result of the run it comes from. No Tk."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path, PurePosixPath

from modules.config.schema import Config
from modules.settings.edit import replaced
from modules.system.paths import from_root, safe_name

_SUFFIXES = (".safetensors", ".ckpt", ".pt", ".bin")  # any other dot belongs to the name of a folder
_NUMBER = re.compile(r"-\d{1,4}$")
_PATH = "output.destination"


def proposed_name(config: Config, exists: Callable[[Path], bool] = Path.exists) -> str:
    """Return the name of the result with the first number that is free: zog-2 for zog."""
    stem = _NUMBER.sub("", _stem_and_suffix(config.output.destination)[0])
    names = (f"{stem}-{number}" for number in count(2))
    return next(name for name in names if not exists(from_root(named(config, name).output.destination)))


def named(config: Config, name: str) -> Config:
    """Return the config with another name of the result, in the same folder and of the same kind."""
    destination = config.output.destination
    clean = safe_name(name) or proposed_name(config)
    folder = destination[: len(destination) - len(_name_of(destination))]
    return replaced(config, _PATH, f"{folder}{clean}{_stem_and_suffix(destination)[1]}")


def _name_of(destination: str) -> str:
    return PurePosixPath(destination.replace("\\", "/")).name


def _stem_and_suffix(destination: str) -> tuple[str, str]:
    name = _name_of(destination)
    suffix = next((s for s in _SUFFIXES if name.lower().endswith(s)), "")
    return name[: len(name) - len(suffix)], name[len(name) - len(suffix) :]
