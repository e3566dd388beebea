"""Models of others: code in their repositories is refused by word, and those that the program names are pinned."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import diffusers
import pytest

from modules.annotators.registry import CAPTIONERS, MASKERS
from modules.objectives.perceptual_files import LPIPS_FILE, VGG_FILE
from modules.rewards.registry import REWARDS
from modules.system.paths import PROGRAM_ROOT

PACKAGES = ("modules", "trainer", "ui", "benchmarks", "demo", "launcher")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def loading_functions() -> Iterator[tuple[Path, ast.AST, ast.Call]]:
    """Yield each call of `from_pretrained` with the function that contains it."""
    for path in sorted(p for package in PACKAGES for p in (PROGRAM_ROOT / package).rglob("*.py")):
        if "from_pretrained" not in (source := path.read_text("utf-8")):
            continue
        for function in (n for n in ast.walk(ast.parse(source)) if isinstance(n, FUNCTIONS)):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("from_pretrained"):
                    yield path.relative_to(PROGRAM_ROOT), function, node


def is_diffusers_model(call: ast.Call) -> bool:
    """Whether a call loads a model class of diffusers, which loads no code of a repository and has no such option."""
    assert isinstance(call.func, ast.Attribute)
    found = getattr(diffusers, ast.unparse(call.func.value), None)
    return isinstance(found, type) and issubclass(found, diffusers.ModelMixin)


def refuses_code(function: ast.AST, call: ast.Call) -> bool:
    """Whether a call says `trust_remote_code=False`, itself or in a dictionary of options that it unpacks."""
    if any(k.arg == "trust_remote_code" and ast.unparse(k.value) == "False" for k in call.keywords):
        return True
    unpacks = any(k.arg is None for k in call.keywords)
    entries = (
        e for node in ast.walk(function) if isinstance(node, ast.Dict) for e in zip(node.keys, node.values, strict=True)
    )
    return unpacks and any(
        key and ast.unparse(key) == "'trust_remote_code'" and ast.unparse(v) == "False" for key, v in entries
    )


def test_code_in_a_repository_is_refused_by_word() -> None:
    calls = list(loading_functions())
    assert len(calls) > 5
    silent = [f"{p}:{c.lineno}" for p, f, c in calls if not is_diffusers_model(c) and not refuses_code(f, c)]
    assert silent == []


def test_nothing_trusts_the_code_of_a_repository() -> None:
    files = [p for package in PACKAGES for p in (PROGRAM_ROOT / package).rglob("*.py")]
    texts = {p: p.read_text("utf-8") for p in files}
    assert [p for p, text in texts.items() if re.search(r"trust_remote_code\W+True|torch\.hub\.", text)] == []


NAMED = {
    **{f.repo: f.revision for spec in REWARDS.values() for f in spec.files if f.repo},
    **{f.repo: f.revision for f in (VGG_FILE, LPIPS_FILE)},
    **{s.files.repo: s.files.revision for s in (*CAPTIONERS.values(), *MASKERS.values()) if s.files and s.files.repo},
}


@pytest.mark.parametrize("repo", NAMED)
def test_a_model_that_the_program_names_is_pinned_to_a_commit(repo: str) -> None:
    """Otherwise its owner, or a thief of the owner's account, could change what every user downloads."""
    assert re.fullmatch(r"[0-9a-f]{40}", NAMED[repo])
