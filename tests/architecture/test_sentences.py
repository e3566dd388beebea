"""Sentences that users read contain no names of Python's: no class names, and no text of Python's file errors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.system.paths import PROGRAM_ROOT

FOLDERS = ("modules", "trainer", "ui")
# Functions that write for a developer: the debugger's text of a record, and logs.
NOT_READ = {"__repr__"}
LOGS = {"debug", "info", "warning", "error", "exception", "critical"}
FILE_ERRORS = {"OSError", "FileNotFoundError", "PermissionError", "UnconfirmedError"}


def jargon_in(tree: ast.AST) -> Iterator[int]:
    """The lines with a class name, or with a file error as Python prints it ("[Errno 2] ..."), in a text."""
    yield from _jargon(tree, frozenset())


def _jargon(node: ast.AST, errors: frozenset[str]) -> Iterator[int]:
    if isinstance(node, ast.FunctionDef) and node.name in NOT_READ:
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOGS:
        return
    if isinstance(node, ast.ExceptHandler) and node.name is not None and node.type is not None:
        caught = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
        errors = errors | {node.name} if caught & FILE_ERRORS else errors - {node.name}
    if isinstance(node, ast.FormattedValue):
        if isinstance(node.value, ast.Name) and node.value.id in errors:
            yield node.lineno
        if node.conversion == ord("r") and isinstance(node.value, ast.Name) and node.value.id == "error":
            yield node.lineno
    texts: list[ast.expr] = [node] if isinstance(node, ast.FormattedValue) else []
    texts += [value for value in _alternatives(node) if not isinstance(value, ast.Compare | ast.Call)]
    if any(_is_class_name(inner) for text in texts for inner in ast.walk(text)):
        yield texts[0].lineno
        return
    for child in ast.iter_child_nodes(node):
        yield from _jargon(child, errors)


def _alternatives(node: ast.AST) -> list[ast.expr]:
    """The values of `a or b`, or of `a if x else b`."""
    return (
        node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse] if isinstance(node, ast.IfExp) else []
    )


def _is_class_name(node: ast.AST) -> bool:
    """Whether this is `type(x).__name__` or a part of `x.__class__`."""
    if not isinstance(node, ast.Attribute):
        return False
    of_type = (
        isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "type"
    )
    return node.attr == "__class__" or (node.attr == "__name__" and of_type)


def files() -> list[Path]:
    return [file for folder in FOLDERS for file in sorted((PROGRAM_ROOT / folder).rglob("*.py"))]


def test_no_sentence_has_a_class_name_or_the_text_of_a_file_error() -> None:
    found = [
        f"{file.relative_to(PROGRAM_ROOT)}:{line}"
        for file in files()
        for line in jargon_in(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "is_jargon"),
    [
        ('f"failed: {type(error).__name__}"', True),
        ("str(error) or type(error).__name__", True),
        ('f"{layer.__class__.__name__}"', True),
        ('f"{error!r}"', True),
        ('logger.warning(f"failed: {type(error).__name__}")', False),
        ('try:\n    x()\nexcept OSError as error:\n    raise Problem(f"cannot be read: {error}.")', True),
        ('try:\n    x()\nexcept (OSError, ValueError) as e:\n    raise Problem(f"cannot be read: {e}.")', True),
        ('try:\n    x()\nexcept ValueError as error:\n    raise Problem(f"cannot be read: {error}.")', False),
        ('f"cannot be read: {reason_of(error)}."', False),
    ],
)
def test_planted_sentences(code: str, is_jargon: bool) -> None:
    assert bool(list(jargon_in(ast.parse(code)))) == is_jargon
