"""Folders of data sets that the package `datasets` saved (`save_to_disk`): which of their files hold the rows.

A data set has data-*.arrow files, and state.json names them; next to them may lie files that `map` and `filter` cached.
A folder with several splits has dataset_dict.json and a folder for each. Only names are read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from modules.system.regular_files import read_regular

STATE_FILE, SPLITS_FILE = "state.json", "dataset_dict.json"
_MAX_BYTES = 10_000_000


def data_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files with a data set's rows; empty for any other folder."""
    files = _read(folder / STATE_FILE).get("_data_files")
    names = [f.get("filename") for f in files if isinstance(f, dict)] if isinstance(files, list) else []
    return tuple(n for n in names if isinstance(n, str))


def split_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the splits, which are subfolders of a data set; empty for any other folder."""
    splits = _read(folder / SPLITS_FILE).get("splits")
    return tuple(s for s in splits if isinstance(s, str)) if isinstance(splits, list) else ()


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(file, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
