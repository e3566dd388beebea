"""The order of the packages: the contracts of pyproject.toml hold, bite, and cover imports that only types need."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from modules.system.paths import PROGRAM_ROOT

# Not `python -m importlinter.cli`: that runs nothing and ends with 0.
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def contract(package: str) -> dict[str, Any]:
    """The contract that orders the packages inside one."""
    settings = tomllib.loads((PROGRAM_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return next(c for c in contracts if c.get("containers") == [package])


def ranks(package: str) -> dict[str, int]:
    """The height of each package: packages side by side have the same."""
    layers = reversed(contract(package)["layers"])
    return {name.strip(): height for height, layer in enumerate(layers) for name in layer.split("|")}


def imports_of(package: str) -> Iterator[tuple[str, str]]:
    """Every import between files of a package, those under TYPE_CHECKING and inside functions included."""
    for path in (PROGRAM_ROOT / package).rglob("*.py"):
        importer = ".".join(path.relative_to(PROGRAM_ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module] if node.module != package else [f"{package}.{a.name}" for a in node.names]
            elif isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            else:
                continue
            yield from ((importer, name) for name in names if name.startswith(f"{package}."))


@pytest.mark.parametrize("package", ["modules", "trainer"])
def test_no_import_goes_up_or_sideways_not_even_for_types(package: str) -> None:
    heights = ranks(package)
    ignored = [tuple(rule.split(" -> ")) for rule in contract(package).get("ignore_imports", [])]
    wrong = []
    for importer, imported in imports_of(package):
        above, below = importer.split(".")[1], imported.split(".")[1]
        is_ignored = any(fnmatch(importer, a) and fnmatch(imported, b) for a, b in ignored)
        if above != below and heights[above] <= heights[below] and not is_ignored:
            wrong.append(f"{importer} imports {imported}")
    assert not wrong


def test_the_contracts_hold() -> None:
    done = lint(PROGRAM_ROOT)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "0 broken" in done.stdout


def test_the_contracts_find_what_is_planted(tmp_path: Path) -> None:
    """In a copy of the program: an import upward, one sideways, one of torch by the window, an unplaced package."""
    for name in ("benchmarks", "demo", "ui", "trainer", "modules"):
        shutil.copytree(PROGRAM_ROOT / name, tmp_path / name, ignore=lambda _, names: _not_code(names))
    shutil.copy(PROGRAM_ROOT / "pyproject.toml", tmp_path)
    planted = {
        "modules/system/planted.py": "from modules.config.schema import Config",
        "modules/data/planted.py": "def f():\n    from modules.families.registry import FAMILIES",
        "trainer/step/planted.py": "from trainer.callbacks.reports import Metrics",
        "trainer/methods/planted.py": "from trainer.data.loader import Loader",
        "trainer/unplaced.py": "",
        "ui/loop/planted.py": "import torch",
        "ui/widgets/planted.py": "from ui.forms.context import Context",
        "ui/features/run/planted.py": "from ui.features.queue.model import QueueControl",
    }
    before = lint(tmp_path)
    assert before.returncode == 0, before.stdout
    for file in planted:
        if file != "trainer/unplaced.py":
            (tmp_path / file).write_text(planted[file])
    told = lint(tmp_path)
    assert told.returncode == 1
    broken = re.findall(r"^(.+?) BROKEN", told.stdout, re.MULTILINE)
    assert [name.split(":")[0] for name in broken] == [
        "The window is torch-free",
        "modules/",
        "trainer/",
        "ui/",
        "ui/features/",
    ]
    for file in planted.keys() - {"trainer/unplaced.py"}:
        importer = file.removesuffix("/planted.py").replace("/", ".")
        assert f"{importer}.planted -> " in told.stdout
        (tmp_path / file).unlink()
    (tmp_path / "trainer/unplaced.py").touch()
    assert lint(tmp_path).returncode == 1


def _not_code(names: list[str]) -> set[str]:
    return {n for n in names if "." in n and not n.endswith(".py")} | {"__pycache__"}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts over the program in a folder."""
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
