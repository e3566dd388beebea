"""The files of weights that are in several, by their index (`*.safetensors.index.json`, as transformers writes it)."""

from __future__ import annotations

import json
from pathlib import Path

from modules.formats.headers import UnreadableFileError
from modules.system.regular_files import read_regular

_MAX_INDEX_BYTES = 16_000_000
_MOST_FILES = 1_000
_MOST_NAME_BYTES = 255  # of a file's name, in most file systems


def is_index(path: Path) -> bool:
    """Return whether a path is the path of an index, by its name."""
    return path.name.endswith(".index.json")


def shards_of(index: Path) -> list[Path]:
    """Return the files that an index names, which are next to it, in order.

    Raises UnreadableFileError where it cannot be read, or names anything but files next to it.
    """
    try:
        names = set(json.loads(read_regular(index, _MAX_INDEX_BYTES))["weight_map"].values())
        if not all(isinstance(n, str) and _is_name(n) for n in names):
            raise ValueError("it names other things than .safetensors files next to it")
    except FileNotFoundError as error:
        raise UnreadableFileError("missing", f"There is no file {index}.") from error
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        message = f"{index.name} is not an index of weight files: {str(error)[:200]}."
        raise UnreadableFileError("damaged", message, advice="Download it again.") from error
    if not 0 < len(names) <= _MOST_FILES:
        raise UnreadableFileError("damaged", f"{index.name} names {len(names):,} files.", advice="Download it again.")
    files = [index.parent / name for name in sorted(names)]
    if missing := [file.name for file in files if not file.is_file()]:
        message = f"{index.name} names {missing[0]}, which is not next to it."
        raise UnreadableFileError("missing", message, advice="Download the missing file, or all of them again.")
    return files


def _is_name(name: str) -> bool:
    is_short = len(name.encode("utf-8", "replace")) <= _MOST_NAME_BYTES
    return is_short and name == Path(name).name and name.endswith(".safetensors") and "\0" not in name
