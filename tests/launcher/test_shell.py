"""The first step of start-ui.sh: finding a Python, before anything of ours runs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.conftest import PYTHON, ROOT, Project

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="start-ui.sh is for POSIX systems")


def only_sentence(project: Project, *arguments: str) -> str:
    """The output of a start that finds no Python."""
    started = project.start(*arguments)
    assert started.exit_code == 1
    assert started.report is None
    (line,) = started.said.splitlines()
    return line


@pytest.fixture
def bare(tmp_path: Path) -> Project:
    """A machine without any Python."""
    return Project(tmp_path)


def test_no_python(bare: Project) -> None:
    output = only_sentence(bare)
    assert output.startswith("Darkroom needs Python 3.11 to 3.14, but this machine has none; install it with: ")
    assert "python.org" in output


@pytest.mark.parametrize("version", ["2.7.18", "3.10.13", "3.15.0"])
def test_python_of_another_version(bare: Project, version: str) -> None:
    bare.other_python("python3", version)
    assert f"this machine has Python {version} (python3)" in only_sentence(bare, "check")


def test_a_later_name_fits(bare: Project) -> None:
    bare.other_python("python3", "3.10.13")
    bare.other_python("python3.14", "3.15.0")
    bare.python("python3.12")
    started = bare.start("check")
    assert started.exit_code == 0, started.said


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "apt-get install python3 python3-venv python3-tk"),
        ("dnf", "dnf install python3.12 python3.12-tkinter"),
        ("pacman", "pacman -S python tk"),
        ("zypper", "zypper install python312 python312-tk"),
        ("brew", "brew install python@3.12 python-tk@3.12"),
        ("conda", "conda create -n darkroom python=3.12 tk && conda activate darkroom"),
    ],
)
@pytest.mark.parametrize("user", [0, 1000])
def test_command_for_the_machine(bare: Project, manager: str, command: str, user: int) -> None:
    bare.tool(manager, "exit 1")
    bare.tools.joinpath("id").unlink()
    bare.tool("id", f"echo {user}")
    sudo = "sudo " if user and manager not in ("brew", "conda") else ""
    assert only_sentence(bare).endswith(f"install it with: {sudo}{command}")


def test_apt_names_a_version_that_fits_beside_an_old_python(bare: Project) -> None:
    bare.other_python("python3", "3.10.13")
    bare.tool("apt-get", "exit 1")
    bare.tool("apt-cache", '[ "$2" = python3.11-venv ]')
    assert only_sentence(bare).endswith("apt-get install python3.11-venv python3.11-tk")


def test_python_variables_of_the_caller_do_no_harm(project: Project) -> None:
    project.make_environment()
    started = project.start("check", PYTHONHOME="/nowhere", PYTHONSAFEPATH="1", PYTHONSTARTUP="/nowhere")
    assert started.exit_code == 0, started.said


def test_scripts_are_clean() -> None:
    for name in ("start-ui.sh", ".ci/run"):
        subprocess.run(["bash", "-n", ROOT / name], check=True)
        if shutil.which("shellcheck"):  # .ci/run installs it
            checked = subprocess.run(["shellcheck", ROOT / name], capture_output=True, text=True)
            assert checked.returncode == 0, checked.stdout


def test_ci_runs_the_readmes_test_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-1] == "exec ./start-ui.sh test"


@pytest.mark.parametrize("has_chromium", [True, False])
def test_ci_installs_a_browser_where_there_is_one(tmp_path: Path, has_chromium: bool) -> None:
    """The tests run without it, too."""
    tools = tmp_path / "bin"
    for folder in (tools, tmp_path / ".ci"):
        folder.mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    for name in ("bash", "env", "dirname", "python3"):
        (tools / name).symlink_to(str(shutil.which(name)))
    refuse = "" if has_chromium else 'case "$*" in *chromium*) exit 100;; esac'
    for place, script in (
        (tools / "id", "echo 0"),
        (tools / "apt-get", f'echo "apt-get $*"\n{refuse}'),
        (tmp_path / "start-ui.sh", 'echo "tests $*"'),
    ):
        place.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        place.chmod(0o755)
    done = subprocess.run(
        [tmp_path / ".ci" / "run"], env={"PATH": str(tools)}, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "apt-get update"
    assert lines[-2] == "apt-get install --yes --no-install-recommends chromium chromium-driver"
    assert lines[-1] == "tests test"
    assert ("are skipped" in done.stderr) != has_chromium


def test_windows_script() -> None:
    raw = (ROOT / "start-ui.bat").read_bytes()
    assert raw.isascii()
    text = raw.decode()
    labels = {line.split()[0][1:] for line in text.splitlines() if line.startswith(":")}
    for line in text.splitlines():
        words = line.split()
        if "goto" in words:
            assert words[words.index("goto") + 1] in labels
        if "call" in words:
            assert words[words.index("call") + 1].lstrip(":") in labels
        assert "(" not in line or line.startswith(("rem", 'set "FITS='))  # a path's brackets would end a block
    assert "DARKROOM_CALLER_DIR=%CD%" in text
    assert "-s -m launcher %*" in text
    # Windows does not remove a program that runs, so the Python of half an environment cannot make it anew.
    assert text.count('\nif not exist ".venv\\.darkroom-unfinished" call :try ".venv\\Scripts\\python.exe"') == 1
    attributes = (ROOT / ".gitattributes").read_text().splitlines()
    assert "*.bat text eol=crlf" in attributes
    # A copy that was made on Windows is started elsewhere, too: in WSL, from a shared disk, on a rented machine.
    assert "* text=auto eol=lf" in attributes


def test_the_check_of_the_version_is_the_same_everywhere() -> None:
    check = "sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))"
    for name in ("start-ui.sh", "start-ui.bat"):
        assert check in (ROOT / name).read_text()
    assert subprocess.run([PYTHON, "-I", "-S", "-c", f"import sys; {check}"]).returncode == 0
