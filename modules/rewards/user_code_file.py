"""Files of a user's own code that a config names: what they are called, and whether they may be run. Torch-free.

A config can come from anywhere, so code that it names runs only after the user approved that very file. What was
approved is kept outside of configs, by the SHA-256 of the file's bytes: a changed file has to be approved again. The
hash covers the file itself and not what it imports.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import shown


def split_reference(reference: str) -> tuple[Path, str]:
    """Return the file and the function of "file.py:function"; relative paths count from the program's root.

    Raises DarkroomError where it is not of this form.
    """
    file, _, function = reference.strip().rpartition(":")
    if not file.endswith(".py") or not function.isidentifier():
        raise DarkroomError(
            f"{shown(reference)} names no function in a Python file.",
            advice="Write the file and the function's name, as in: rewards/mine.py:score.",
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
        f"The reward {function} of {file} is a program that would run with your rights, and this file is not approved.",
        advice="Read it; if you trust it, approve it in the window, or start with --allow-code.",
    )
