"""The files of a cache folder, recognized without reading them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

SHARDS = "shards"  # the folder of shards
_FILE = re.compile(r"[0-9a-f]{16,}\.safetensors")  # the name is a key, or the digest of a shard's keys


def entry_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a cache folder that are entries or shards by their names.

    A config names the folder, so other files in it may be anything of the user's.
    """
    for path in folder.glob("*/*.safetensors"):
        is_in_place = path.parent.name in (path.name[:2], SHARDS)
        if is_in_place and _FILE.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            yield path
