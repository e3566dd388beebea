"""The approved files of the user's own code: their hashes, in the platform's config folder, outside of any config.

A config can come from anywhere. Code that it refers to runs only where the user approved that very file on this
machine.
"""

from __future__ import annotations

import json
from pathlib import Path

from modules.system.atomic import atomic_file
from modules.system.paths import approvals_file


def approved_hashes(file: Path | None = None) -> frozenset[str]:
    """Return the SHA-256 sums of the approved files. Never raises: an unreadable list approves nothing."""
    return frozenset(_read(file or approvals_file()))


def approve(digest: str, path: Path, file: Path | None = None) -> None:
    """Store the approval of a file by its SHA-256; `path` is only there for people. Raises OSError."""
    file = file or approvals_file()
    content = json.dumps({**_read(file), digest: str(path)}, indent=2) + "\n"
    with atomic_file(file) as temporary:
        temporary.write_text(content, encoding="utf-8")


def _read(file: Path) -> dict[str, str]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {digest: str(path) for digest, path in data.items()}
