"""The rules of the house, checked by machine: lint, format, types, layers, and what may stand nowhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from modules.system.paths import PROGRAM_ROOT

FOLDERS = ("modules", "trainer", "ui", "benchmarks", "demo", "launcher", "tests")
SOURCES = [p for d in FOLDERS for p in (PROGRAM_ROOT / d).rglob("*.py")]
PROGRAM = [p for p in SOURCES if "tests" not in p.relative_to(PROGRAM_ROOT).parts]


def tool(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=PROGRAM_ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_lint() -> None:
    tool("ruff", "check", ".")


def test_format() -> None:
    tool("ruff", "format", "--check", ".")


@pytest.mark.timeout(600)
def test_types() -> None:
    tool("mypy")


def test_the_import_system_stays_as_it_is() -> None:
    """Packages that were hidden from libraries broke the processes that had imported these libraries before."""
    patched = re.compile(r"sys\.meta_path|find_spec = |setattr\(importlib|sys\.modules\.pop|del sys\.modules")
    found = [str(p.relative_to(PROGRAM_ROOT)) for p in PROGRAM if patched.search(p.read_text(encoding="utf-8"))]
    assert found == []


def test_torchvision_is_absent() -> None:
    """It breaks diffusers beside a processor build of torch, by its mere presence."""
    assert importlib.util.find_spec("torchvision") is None


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"use_reentrant\s*=\s*True", "reentrant checkpointing loses gradients"),
        (r"weights_only\s*=\s*False", "it executes code from a file"),
        (r"\bpickle\.loads?\b|\bimport pickle\b", "it executes code from a file"),
        (r"torch\.load\((?![^)]*weights_only=True)", "torch.load needs weights_only=True"),
        (r"\bimport torchvision\b|\bfrom torchvision\b", "torchvision must stay absent"),
        (r"except\s*:", "a bare except hides what went wrong"),
        (r"noqa:\s*F821|ignore.*F821", "an undefined name is always a fault"),
    ],
)
def test_what_may_stand_nowhere(pattern: str, why: str) -> None:
    found = [f"{p.relative_to(PROGRAM_ROOT)}" for p in PROGRAM if re.search(pattern, p.read_text(encoding="utf-8"))]
    assert not found, f"{why}: {found}"


def test_customtkinter_is_known_to_the_widgets_alone() -> None:
    found = [
        str(p.relative_to(PROGRAM_ROOT))
        for p in PROGRAM
        if re.search(r"^\s*(import|from) customtkinter", p.read_text(encoding="utf-8"), re.MULTILINE)
        and (PROGRAM_ROOT / "ui" / "widgets") not in p.parents
    ]
    assert not found


@pytest.mark.parametrize("name", ["util", "utils", "common", "helpers", "misc"])
def test_no_attic(name: str) -> None:
    assert not [p for p in SOURCES if p.stem == name or name in p.relative_to(PROGRAM_ROOT).parts]


# Parts are run by their families, and by these: the demo's own trainer builds its parts itself.
PART_CALLERS = ("modules/families/", "demo/make/", "benchmarks/")


def test_only_families_call_the_forward_of_a_part() -> None:
    """`family.unet(...)`, `part.module(...)`, `.vae.decode(...)` and the like stand in no other file."""
    calls = re.compile(
        r"\.(unet|vae|text_encoder|module)\(|\.(unet|vae|text_encoder|module)\.(forward|encode|decode)\("
    )
    found = []
    for path in PROGRAM:
        name = path.relative_to(PROGRAM_ROOT).as_posix()
        if name.startswith(PART_CALLERS) or name.startswith("ui/"):
            continue
        found += [f"{name}: {m.group()}" for m in calls.finditer(path.read_text(encoding="utf-8"))]
    assert not found


def test_nobody_asks_a_training_method_or_a_reward_for_its_name() -> None:
    """Their records hold the facts that others need. Old configs and files of other programs name them, too."""
    from modules.objectives.registry import METHODS
    from modules.rewards.registry import REWARDS

    names = {*METHODS, *REWARDS}
    asked = re.compile(rf'(==|!=|\bin\b|case) *[(\[{{]*"({"|".join(names)})"')
    found = [
        f"{path.relative_to(PROGRAM_ROOT)}:{number}"
        for folder in ("modules", "trainer", "ui")
        for path in sorted((PROGRAM_ROOT / folder).rglob("*.py"))
        if not {"migrations", "imports"} & set(path.parts)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if asked.search(line) or re.search(r"isinstance\(.*, (Denoise|AlignProp)\)", line)
    ]
    assert found == []


def test_public_functions_of_the_engine_say_what_they_do() -> None:
    import ast

    bare = []
    for path in PROGRAM:
        name = path.relative_to(PROGRAM_ROOT).as_posix()
        if not name.startswith(("modules/", "trainer/", "benchmarks/", "demo/")):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        inner = {id(c) for f in functions if isinstance(f, ast.FunctionDef) for c in ast.walk(f) if c is not f}
        bare += [
            f"{name}: {f.name}"
            for f in functions
            if not f.name.startswith("_") and id(f) not in inner and not ast.get_docstring(f) and not _is_stub(f)
        ]
    assert not bare


def _is_stub(function: object) -> bool:
    """Whether it is one line of a protocol: `def f(self) -> X: ...`."""
    import ast

    body = getattr(function, "body", [])
    return len(body) == 1 and isinstance(body[0], ast.Expr) and getattr(body[0].value, "value", None) is ...


def test_no_registry_and_no_machine_is_named() -> None:
    """The project speaks of itself alone; PyTorch's wheel index stands in the launcher's one data file."""
    hosts = re.compile(r"pypi\.org|pythonhosted|download\.pytorch\.org|registry\.npmjs|/work/|/root/|/opt/pypi")
    texts = [
        p
        for p in PROGRAM_ROOT.rglob("*")
        if p.suffix in {".py", ".toml", ".md", ".sh", ".bat", ".txt", ".json", ".cfg"} or p.name == "run"
    ]
    allowed = {PROGRAM_ROOT / "launcher" / "torch_builds.toml", Path(__file__)}
    skipped = {".venv", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", "workspace", "models", "shared"}
    found = [
        str(p.relative_to(PROGRAM_ROOT))
        for p in texts
        if p.is_file()
        and p not in allowed
        and not skipped & set(p.relative_to(PROGRAM_ROOT).parts)
        and hosts.search(p.read_text(encoding="utf-8", errors="replace"))
    ]
    assert not found
