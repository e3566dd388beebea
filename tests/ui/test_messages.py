"""Messages name settings by their labels, never by their keys in files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from modules.config.schema import Config
from modules.settings.field import FieldRecord, records_of
from modules.system.paths import PROGRAM_ROOT

# What the window shows. The command line (`trainer/cli`) names keys, which its users type.
ROOMS = ("modules/config/rules", "modules/data/doctor", "trainer/preflight", "trainer/run", "trainer/callbacks", "ui")


def keys() -> set[str]:
    """Return the dotted paths of all settings, those of variants and of list entries included."""
    found: set[str] = set()
    for record in records_of(Config):
        found |= {record.path, *(f.path for f in inner(record))}
    return {key for key in found if "." in key}


def inner(record: FieldRecord) -> Iterator[FieldRecord]:
    for section in (record.item, *record.variants.values()):
        if section is not None:
            yield from records_of(section, record.path)


def sentences(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the texts with spaces, docstrings left out, with their lines."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        if is_text and " " in node.value.strip():
            yield node.lineno, node.value


def keys_in(text: str, known: set[str]) -> list[str]:
    return [word for word in re.findall(r"[a-z_0-9]+(?:\.[a-z_0-9]+)+", text) if word in known]


def test_no_message_has_the_key_of_a_setting() -> None:
    known = keys()
    assert keys_in("keep fewer backups (backup.keep), please", known) == ["backup.keep"]  # the scan finds them
    files = [file for room in ROOMS for file in sorted(Path(PROGRAM_ROOT, room).rglob("*.py"))]
    assert len(files) > 100
    sources = {file: file.read_text(encoding="utf-8") for file in files}
    found = {
        f"{file.name}:{line}: {key}"
        for file, source in sources.items()
        if keys_in(source, known)  # parsing is slow, and few files name a key at all
        for line, text in sentences(ast.parse(source))
        for key in keys_in(text, known)
    }
    assert not found
