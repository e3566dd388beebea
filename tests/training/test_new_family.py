"""The template of a new family: what it lays is a family that loads, predicts and is recognized."""

from __future__ import annotations

import ast
import importlib
import shutil
from pathlib import Path

import pytest
import torch

import modules.families
import tests.builders
from modules.families.registry import FAMILIES, files_of, registered
from modules.system.paths import PROGRAM_ROOT
from tests.builders.new_family import lay
from tests.builders.pipelines import load_tiny, noise_of

COPIED = ("modules/families/sana", "modules/families/registry.py")
TESTS = ("tests/builders/sana.py", "tests/builders/flow_models.py", "tests/training/test_sana.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of what the template reads and changes."""
    for name in (*COPIED, *TESTS):
        source, target = PROGRAM_ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    return tmp_path


def test_a_family_that_was_laid_is_accepted_by_the_registry(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay("new_one", "sana", root)
    monkeypatch.setattr(modules.families, "__path__", [*modules.families.__path__, str(root / "modules/families")])
    monkeypatch.setattr(tests.builders, "__path__", [*tests.builders.__path__, str(root / "tests/builders")])
    spec = importlib.import_module("modules.families.new_one.spec").NEW_ONE
    with registered(spec):
        assert (
            files_of("new_one").models[0].shipped_configs().keys()
            == files_of("sana").models[0].shipped_configs().keys()
        )
        tiny = importlib.import_module("tests.builders.new_one").TINY
        family = load_tiny(tiny.write(tmp_path / "tiny"), "new_one")
        assert (type(family).__name__, family.spec.settings.__name__) == ("NewOne", "NewOneSettings")
        noisy = noise_of(family, batch=1, seed=0)
        with torch.no_grad():
            output = family.predict(noisy, torch.tensor([500.0]), family.encode_prompts(["a disc"]))
        assert output.shape == noisy.shape
    assert "new_one" not in FAMILIES


def test_its_lines_are_in_both_lists_and_its_tests_name_it(root: Path) -> None:
    made = lay("new_one", "sana", root)
    assert all(path.exists() for path in made)
    registry, tiny = ((root / name).read_text() for name in ("modules/families/registry.py", TESTS[1]))
    assert '        "new_one": "new_one.spec",\n' in registry
    assert '    "tiny_new_one": "tests.builders.new_one:TINY",\n' in tiny
    assert "def test_prompts_are_read_after_the_instruction_in_lower_case(tiny_new_one: Path" in made[2].read_text()
    for text in (registry, tiny, *(file.read_text() for file in root.rglob("*.py"))):
        ast.parse(text)


@pytest.mark.parametrize("name", ["sana", "New", "a-b"])
def test_a_name_that_is_taken_or_no_name_is_refused(name: str, root: Path) -> None:
    with pytest.raises(ValueError, match="is taken, or is not made of"):
        lay(name, "sana", root)
