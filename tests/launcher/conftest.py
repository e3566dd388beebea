"""A small project with the real launcher, environments with a pip that records, and Pythons that lack things."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.environment import Environment, Kind
from launcher.messages import Sentence
from tests.launcher import fake_pip

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(getattr(sys, "_base_executable", None) or sys.executable)
PACKAGING = Path(str(importlib.util.find_spec("packaging").origin)).parent  # type: ignore[union-attr]
TOOLS = ("dirname", "readlink", "id", "sh")

PROJECT = """
[project]
dependencies = ["alpha>=1,<2", "beta>=2"]
[project.optional-dependencies]
ui = ["gamma>=1"]
dev = ["delta>=1"]
"""
CONSTRAINTS = "# tested\nalpha==1.5\nbeta==2.5\ngamma==1.0\ndelta==1.0\ntorch==2.13.0\n"
REPORT = """
import json, os, sys
print(json.dumps({"module": %r, "arguments": sys.argv[1:], "folder": os.getcwd(), "prefix": sys.prefix,
                  "caller": os.environ["DARKROOM_CALLER_DIR"], "path": os.environ["PATH"]}))
raise SystemExit(int(os.environ.get("STUB_EXIT", 0)))
"""


class Project:
    """A copy of the launcher beside stub programs, in a folder with an awkward name."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "Dunkel kämmer"
        self.tools = folder / "bin"
        self.pip = folder / "pip"
        for made in (self.root, self.tools, self.pip):
            made.mkdir(parents=True)
        shutil.copytree(ROOT / "launcher", self.root / "launcher", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "start-ui.sh", self.root)
        self.write("pyproject.toml", PROJECT)
        self.write("constraints.txt", CONSTRAINTS)
        for module in ("ui", "trainer", "pytest", "benchmarks", "demo.make"):
            self.write(f"{module.replace('.', '/')}/__main__.py", REPORT % module)
        for tool in TOOLS:
            (self.tools / tool).symlink_to(str(shutil.which(tool)))

    def write(self, name: str, text: str) -> None:
        """Write one of the project's files."""
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8")

    def tool(self, name: str, script: str) -> None:
        """Put a program on PATH."""
        path = self.tools / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def python(self, name: str = "python3", *, without: tuple[str, ...] = ()) -> None:
        """Put a Python on PATH that makes environments with the recording pip and lacks some modules."""
        hidden = self.hide(*without)
        add_pip = f'"{PYTHON}" "{fake_pip.__file__}" --add-to "$4" "{PACKAGING}"'
        self.tool(
            name,
            f'export PYTHONPATH="{hidden}"\n'
            f'case "$1 $2 $3" in "-I -m venv") "{PYTHON}" -I -m venv --without-pip "$4" && {add_pip}; exit ;; esac\n'
            f'exec "{PYTHON}" "$@"',
        )

    def hide(self, *modules: str) -> Path:
        """A folder for PYTHONPATH in which these modules cannot be imported."""
        folder = self.root.parent / "-".join(("hidden", *modules))
        folder.mkdir(exist_ok=True)
        for module in modules:
            (folder / f"{module}.py").write_text(f"raise ImportError('no {module}')\n", encoding="utf-8")
        return folder

    def other_python(self, name: str, version: str) -> None:
        """Put a Python on PATH whose version does not fit."""
        self.tool(name, f'[ "$1" = --version ] && echo "Python {version}" && exit 0\nexit 1')

    def make_environment(self, kind: Kind = "project", *, with_pip: bool = True) -> Environment:
        """An environment of its own, with the recording pip."""
        prefix = self.root / ".venv" if kind == "project" else self.root.parent / f"my {kind}"
        subprocess.run([PYTHON, "-I", "-m", "venv", "--without-pip", prefix], check=True)
        if with_pip:
            fake_pip.add_to(prefix, PACKAGING)
        return Environment(kind, prefix)

    def start(
        self, *arguments: str, active: Environment | None = None, folder: Path | None = None, **variables: str
    ) -> "Started":
        """Run start-ui.sh to its end."""
        return Started(
            subprocess.run(
                [self.root / "start-ui.sh", *arguments],
                cwd=folder or self.root,
                env=self.variables(active, variables),
                capture_output=True,
                text=True,
                timeout=60,
            )
        )

    def variables(self, active: Environment | None, more: Mapping[str, str]) -> dict[str, str]:
        """The environment variables of a start: a PATH of few tools, no display."""
        given = {"PATH": str(self.tools), "HOME": str(self.root.parent), "FAKE_PIP": str(self.pip)}
        given |= {"LANG": "C.UTF-8", "DARKROOM_TORCH_INDEX": "default"}
        given |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}  # should a real pip ever be asked
        if active is not None:
            given["CONDA_PREFIX" if active.kind == "conda" else "VIRTUAL_ENV"] = str(active.prefix)
        return given | dict(more)

    def pip_behaves(self, mode: str) -> None:
        """Choose what the recording pip does next."""
        (self.pip / "mode").write_text(mode)

    @property
    def pip_calls(self) -> list[dict[str, Any]]:
        """What pip was asked so far."""
        path = self.pip / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Started:
    """How a start ended."""

    def __init__(self, process: "subprocess.CompletedProcess[str]") -> None:
        self.exit_code = process.returncode
        self.said = process.stderr
        self.report: Any = json.loads(process.stdout) if process.stdout.strip() else None

    def failed_with(self, sentence: Sentence, *parts: str) -> bool:
        """Whether it ended with this sentence as its last line, and no traceback."""
        last = self.said.strip().splitlines()[-1]
        shape = re.sub(r"\\{[^{}]*?\\}", ".+", re.escape(sentence.value))
        assert "Traceback" not in self.said, self.said
        assert self.exit_code != 0, self.said
        assert self.report is None
        assert re.fullmatch(shape, last), self.said
        for part in parts:
            assert part in last, self.said
        return True


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A small project with the real launcher and a Python that has everything."""
    made = Project(tmp_path)
    made.python()
    return made
