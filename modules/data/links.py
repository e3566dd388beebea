"""Links in the folder of a concept: one that leads out of it is not followed.

A data set of a stranger could otherwise name any file of the machine: its text becomes a caption, and captions become
metadata of the trained model.
"""

from __future__ import annotations

import os
from pathlib import Path

LEADS_OUT = "a link that leads out of the concept's folder, which is not followed"
BROKEN = "a link to a file or folder that does not exist"


def leads_out(path: Path, folder: Path) -> bool:
    """Return whether a file in a concept's folder (or next to its single file) is a link to a place outside of it."""
    try:
        return path.is_symlink() and not is_inside(os.path.realpath(path), folder)
    except (OSError, ValueError):  # a loop of links, or not a valid file name
        return False


def is_inside(real: str, folder: Path) -> bool:
    """Return whether a path without links lies in a folder, or is what the hub's cache keeps for the folder.

    The files of a data set in that cache are links from `snapshots/<revision>/` to `blobs/` next to it.
    """
    root = Path(os.path.realpath(folder))
    roots = [root if root.is_dir() else root.parent]
    for parent in (root, *root.parents):
        if parent.parent.name == "snapshots":
            roots.append(parent.parent.parent / "blobs")
            break
    return any(Path(real).is_relative_to(r) for r in roots)
