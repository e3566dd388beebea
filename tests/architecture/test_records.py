"""Every choice is one record: nobody else knows its name, and the records stay below what is composed from them."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from modules.optim.registry import OPTIMIZERS
from modules.system.paths import PROGRAM_ROOT

PROGRAM = [p for d in ("modules", "trainer", "ui") for p in (PROGRAM_ROOT / d).rglob("*.py")]
# Files of other programs and of earlier versions name optimizers; so do whole configs that are written as code.
MAY_NAME_OPTIMIZERS = (
    "modules/optim/",
    "modules/config/migrations/",
    "modules/config/imports/",
)


def strings(path: Path) -> Iterator[str]:
    """The strings of a file that are not documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


LABELS = re.compile("|".join(rf"\b{re.escape(spec.label)}(?!\w)" for spec in OPTIMIZERS.values()))


def optimizers_named(path: Path) -> list[str]:
    source = path.read_text(encoding="utf-8")
    if not any(name in source for name in OPTIMIZERS) and not LABELS.search(source):
        return []
    return [f"{path.name}: {s!r}" for s in strings(path) if s in OPTIMIZERS or LABELS.search(s)]


def test_nobody_else_knows_an_optimizers_name() -> None:
    others = [p for p in PROGRAM if not p.relative_to(PROGRAM_ROOT).as_posix().startswith(MAY_NAME_OPTIMIZERS)]
    assert len(others) > 200
    assert not [found for path in others for found in optimizers_named(path)]


def test_a_name_that_is_planted_is_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text('"""AdamW may stand here."""\nif name == "adamw":\n    advice = "Choose Adafactor."\n')
    assert optimizers_named(planted) == ["planted.py: 'adamw'", "planted.py: 'Choose Adafactor.'"]


def test_only_the_registry_imports_a_record() -> None:
    """No `isinstance` on a variant: its class is known to its own file."""
    imported = re.compile(r"modules\.optim\.(optimizers|schedules)\b")
    found = []
    for path in PROGRAM:
        name = path.relative_to(PROGRAM_ROOT).as_posix()
        registries = ("modules/optim/registry.py", "modules/optim/schedule_registry.py")
        is_sibling = name.startswith(("modules/optim/optimizers/", "modules/optim/schedules/"))
        if name not in registries and not is_sibling and imported.search(path.read_text(encoding="utf-8")):
            found.append(name)
    assert not found


def test_optimizers_are_below_the_config() -> None:
    above = re.compile(r"^\s*(from|import) modules\.(config|estimate|families|adapters)", re.MULTILINE)
    optim = (PROGRAM_ROOT / "modules" / "optim").rglob("*.py")
    assert not [p.name for p in optim if above.search(p.read_text(encoding="utf-8"))]


def test_a_record_is_in_a_file_of_its_kind_with_its_settings() -> None:
    folder = PROGRAM_ROOT / "modules" / "optim" / "optimizers"
    files = {p.stem for p in folder.glob("*.py")} - {"__init__"}
    modules = {name: importlib.import_module(spec.settings.__module__) for name, spec in OPTIMIZERS.items()}
    assert {module.__name__ for module in modules.values()} == {f"modules.optim.optimizers.{stem}" for stem in files}
    for name, spec in OPTIMIZERS.items():
        assert getattr(modules[name], name.upper()) is spec
        assert spec.help.endswith(".")
