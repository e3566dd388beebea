"""References in a config to the user's own code, and the approval of that code.

A config can come from anywhere, so code that it names runs only after the user approved exactly that file. Approvals
are stored in the platform's config folder, outside of configs, by the SHA-256 of the file's bytes: a changed file must
be approved again. The hash covers the file itself, not the files it imports.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

from modules.system.atomic import atomic_file
from modules.system.errors import DarkroomError
from modules.system.paths import approvals_file, from_root
from modules.system.problem import quote
from modules.system.regular_files import read_json_object


def split_reference(reference: str) -> tuple[Path, str]:
    """Return the file and the function of "file.py:function"; relative paths start at the program's root.

    Raises DarkroomError where the reference does not have this form.
    """
    file, _, function = reference.strip().rpartition(":")
    if not file.endswith(".py") or not function.isidentifier():
        raise DarkroomError(
            f"{quote(reference)} is not a function in a Python file."
            if reference.strip()
            else "No Python file with a reward function is chosen.",
            advice="Enter the file and the function's name, for example rewards/mine.py:score.",
        )
    return from_root(file), function


def hash_of(file: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal. Raises DarkroomError where it cannot be read."""
    return hash_of_code(read_code(file))


def read_code(file: Path) -> bytes:
    """Return a file's bytes. Raises DarkroomError where it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise DarkroomError(
            f"The reward function's file {file} cannot be read: {error.strerror or error}.",
            advice="Correct the path of the reward model's file.",
        ) from error


def hash_of_code(code: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(code).hexdigest()


def refusal_of(file: Path, function: str) -> DarkroomError:
    """Return the error for code that was not approved."""
    return DarkroomError(
        f"The reward {function} of {file} is not approved. It would run as a program with your permissions.",
        advice="Read the file. If you trust it, approve it in the window, or start with --allow-code.",
    )


def approved_code(file: Path, function: str, approved: Collection[str]) -> bytes:
    """Return the bytes of a file if their hash is approved. Raises DarkroomError if not, or if it cannot be read."""
    code = read_code(file)
    if hash_of_code(code) not in approved:
        raise refusal_of(file, function)
    return code


def approved_hashes(file: Path | None = None) -> frozenset[str]:
    """Return the SHA-256 sums of the approved files. Never raises: an unreadable list approves nothing."""
    return frozenset(_read_approvals(file or approvals_file()))


def approve(digest: str, path: Path | str, file: Path | None = None) -> None:
    """Store the approval of a file or an address by its SHA-256; `path` is only there for people. Raises OSError."""
    file = file or approvals_file()
    content = json.dumps({**_read_approvals(file), digest: str(path)}, indent=2) + "\n"
    with atomic_file(file) as temporary:
        temporary.write_text(content, encoding="utf-8")


def _read_approvals(file: Path) -> dict[str, str]:
    return {digest: str(path) for digest, path in (read_json_object(file) or {}).items()}
