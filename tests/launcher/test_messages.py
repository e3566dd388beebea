"""Every failure is provoked, and ends with its one message and the command that fixes it."""

import errno
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher import display, install, marker
from launcher.environment import Environment, create, write_errors_as_failures
from launcher.fix_commands import Machine
from launcher.interpreter import Interpreter
from launcher.messages import Failure, Sentence
from launcher.progress import Progress
from tests.launcher import fake_pip
from tests.launcher.conftest import Project
from tests.launcher.test_start import site_packages

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="start-ui.sh is for POSIX systems")

TORCH_PROJECT = '[project]\ndependencies = ["torch>=2.9,<3", "alpha>=1"]\n'
START = "./start-ui.sh"


def test_every_sentence_is_provoked_somewhere() -> None:
    here = Path(__file__).parent
    texts = "".join(path.read_text(encoding="utf-8") for path in here.glob("test_*.py"))
    assert [sentence.name for sentence in Sentence if f"Sentence.{sentence.name}" not in texts] == []


@pytest.mark.parametrize("sentence", Sentence)
def test_every_sentence_names_a_command(sentence: Sentence) -> None:
    assert "{command}" in sentence.value
    assert "\n" not in sentence.value


def test_active_venv_without_python(project: Project, tmp_path: Path) -> None:
    gone = Environment("venv", tmp_path / "gone")
    assert project.start("check", active=gone).failed_with(
        Sentence.ACTIVE_WITHOUT_PYTHON, str(gone.prefix), f"deactivate && {START}"
    )


def test_active_conda_without_python(project: Project, tmp_path: Path) -> None:
    empty = Environment("conda", tmp_path / "leer")
    empty.prefix.mkdir()
    assert project.start("check", active=empty).failed_with(
        Sentence.ACTIVE_WITHOUT_PYTHON, f"conda install -p {empty.prefix} python=3.12 tk"
    )


@pytest.mark.parametrize(("kind", "remedy"), [("venv", "deactivate &&"), ("conda", "conda create -n darkroom")])
def test_active_environment_with_an_old_python(project: Project, tmp_path: Path, kind: str, remedy: str) -> None:
    old = Environment("conda" if kind == "conda" else "venv", tmp_path / "old")
    old.python.parent.mkdir(parents=True)
    old.python.write_text(
        '#!/bin/sh\ncase "$*" in *json*) echo \'["/old/python", [3, 9, 18], true, true]\' ;; *) exit 1 ;; esac\n'
    )
    old.python.chmod(0o755)
    assert project.start("check", active=old).failed_with(Sentence.ACTIVE_WRONG_VERSION, "3.9.18", remedy)


def test_active_environment_that_is_none(project: Project, tmp_path: Path) -> None:
    fake = Environment("venv", tmp_path / "fake")
    fake.python.parent.mkdir(parents=True)
    fake.python.symlink_to(sys.base_prefix + f"/bin/python3.{sys.version_info[1]}")
    assert project.start("check", active=fake).failed_with(Sentence.ACTIVE_NOT_ITSELF, sys.base_prefix)
    assert project.pip_calls == []


def test_active_environment_of_something_else(project: Project) -> None:
    env = project.make_environment("venv")
    fake_pip.install("alpha", "0.5", folder=site_packages(env.prefix))
    started = project.start("check", active=env)
    assert started.failed_with(
        Sentence.ACTIVE_CONFLICT, "alpha 0.5", "alpha>=1,<2", f"deactivate && {START}", '-m pip install "alpha>=1,<2"'
    )
    assert project.pip_calls == []


def test_active_environment_whose_packages_do_not_go_together(project: Project) -> None:
    env = project.make_environment("venv")
    project.pip_behaves("conflict")
    assert project.start("check", active=env).failed_with(Sentence.ACTIVE_RESOLUTION, "darkroom-install.log")


def test_active_environment_that_is_locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr("sys.base_prefix", sys.prefix)  # a conda environment is not a virtual environment
    with pytest.raises(Failure, match="conda create -n darkroom") as failure:
        install.ensure(job(tmp_path, Environment("conda", tmp_path)))
    assert failure.value.sentence is Sentence.ACTIVE_MANAGED


def test_folder_in_the_way(project: Project) -> None:
    project.write(".venv/precious.txt", "mine")
    assert project.start("check").failed_with(Sentence.FOLDER_NOT_OURS, "mv ")
    assert (project.root / ".venv" / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize("arguments", [[], ["test"]])
def test_python_without_tkinter(project: Project, arguments: list[str]) -> None:
    project.python(without=("tkinter",))
    project.tool("Xvfb", "exit 1")
    assert project.start(*arguments, DISPLAY=":0").failed_with(Sentence.NO_TKINTER, "3.")
    assert not (project.root / ".venv").exists()


def test_conda_environment_without_tkinter(project: Project) -> None:
    env = project.make_environment("conda")
    hidden = str(project.hide("tkinter"))
    assert project.start(active=env, DISPLAY=":0", PYTHONPATH=hidden).failed_with(
        Sentence.NO_TKINTER, f"conda install -p '{env.prefix}' tk"
    )


def test_tkinter_that_does_not_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(display, "window_error", lambda: "Can't find a usable init.tcl")
    monkeypatch.setattr(display, "_draws_with_x11", lambda: True)
    with pytest.raises(Failure, match=r"init\.tcl") as failure:
        display.refuse_without_window(Environment("project", tmp_path), Machine("dnf", is_root=False))
    assert failure.value.sentence is Sentence.TK_BROKEN


def test_python_without_ensurepip(project: Project) -> None:
    project.python(without=("ensurepip",))
    assert project.start("check").failed_with(Sentence.NO_VENV, "3.")


def test_environment_without_pip(project: Project) -> None:
    env = project.make_environment(with_pip=False)
    hidden = str(project.hide("ensurepip"))
    assert project.start("check", PYTHONPATH=hidden).failed_with(Sentence.NO_PIP, str(env.prefix), "-m ensurepip")


def test_no_display(project: Project) -> None:
    started = project.start()
    assert started.failed_with(Sentence.NO_DISPLAY, "DISPLAY is not set", f"{START} train")
    assert not (project.root / ".venv").exists()


def test_display_that_does_not_answer(project: Project) -> None:
    project.make_environment()
    assert project.start(DISPLAY=":987").failed_with(Sentence.NO_DISPLAY, ":987", f"{START} train")


@pytest.mark.parametrize("dead", ["", ":987"])
def test_tests_without_display_or_xvfb(project: Project, dead: str) -> None:
    project.tool("dnf", "exit 1")
    assert project.start("test", DISPLAY=dead).failed_with(Sentence.NO_TEST_DISPLAY, "dnf install xorg-x11-server-Xvfb")
    assert project.pip_calls == []


def test_no_network_at_the_first_start(project: Project) -> None:
    project.pip_behaves("network")
    started = project.start("check")
    assert started.failed_with(Sentence.NO_NETWORK, "darkroom-install.log", START)
    assert "NewConnectionError" in (project.root / ".venv" / "darkroom-install.log").read_text()
    project.pip_behaves("good")
    assert project.start("check").exit_code == 0


def test_torch_index_that_cannot_be_reached(project: Project) -> None:
    project.write("pyproject.toml", TORCH_PROJECT)
    assert project.start("check", DARKROOM_TORCH_INDEX="http://127.0.0.1:9/whl").failed_with(
        Sentence.NO_TORCH_INDEX, "http://127.0.0.1:9/whl", "2.13.0"
    )


def test_full_disk(project: Project) -> None:
    project.pip_behaves("disk")
    assert project.start("check").failed_with(Sentence.DISK_FULL, "-m pip cache purge")


def test_pip_may_not_write(project: Project) -> None:
    project.pip_behaves("read-only")
    assert project.start("check").failed_with(Sentence.READ_ONLY, str(project.root), "cp -r")
    env = project.make_environment("venv")
    assert project.start("check", active=env).failed_with(Sentence.ACTIVE_READ_ONLY, str(env.prefix), "deactivate")


class SystemError_(NamedTuple):  # noqa: N801 - the system's error, and the message for it
    code: int
    sentence: Sentence


@pytest.mark.parametrize(
    "case",
    [
        SystemError_(errno.EROFS, Sentence.READ_ONLY),
        SystemError_(errno.EACCES, Sentence.READ_ONLY),
        SystemError_(errno.ENOSPC, Sentence.DISK_FULL),
    ],
)
def test_system_that_will_not_write(case: SystemError_, tmp_path: Path) -> None:
    """Simulated, since root may write everywhere."""
    with pytest.raises(Failure) as failure, write_errors_as_failures(Environment("project", tmp_path / ".venv")):
        raise OSError(case.code, os.strerror(case.code))
    assert failure.value.sentence is case.sentence


def test_disk_without_room_for_an_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 8, 1_000_000))
    base = Interpreter(("no-such-python",), Path("python3"), (3, 12, 0), True, True)
    with pytest.raises(Failure) as failure:
        create(Environment("project", tmp_path), base)
    assert failure.value.sentence is Sentence.DISK_FULL


def test_disk_that_is_too_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 8, 1_200_000_000))
    with pytest.raises(Failure, match=r"1\.2 GB free") as failure:
        install._install_torch(
            job(tmp_path, Environment("project", tmp_path)), {"torch": "2.13.0"}, {}, set(), sys.stderr, Progress()
        )
    assert failure.value.sentence is Sentence.DISK_TOO_SMALL


def test_torch_that_does_not_work(project: Project) -> None:
    project.write("pyproject.toml", TORCH_PROJECT)
    env = project.make_environment()
    fake_pip.install("torch", "2.13.0", folder=site_packages(env.prefix))
    (site_packages(env.prefix) / "torch.py").write_text("raise ImportError('libcudart.so.13 is not there')")
    assert project.start("check").failed_with(
        Sentence.TORCH_BROKEN, "libcudart.so.13 is not there", "-m pip uninstall -y torch"
    )


def test_torchvision_that_does_not_work(project: Project) -> None:
    env = project.make_environment()
    packages = site_packages(env.prefix)
    fake_pip.install("torchvision", "0.28.0", folder=packages)
    (packages / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    assert project.start("check").failed_with(Sentence.TORCHVISION_BROKEN, "-m pip uninstall -y torchvision")

    (packages / "torchvision.py").write_text("")
    assert project.start("check").exit_code == 0
    (packages / "torchvision.py").write_text("raise RuntimeError('not tried again while the versions stand')")
    assert project.start("check").exit_code == 0


def test_environment_that_cannot_be_made(project: Project) -> None:
    project.tool(
        "python3",
        f'case "$*" in "-I -m venv "*) echo "Error: no luck" >&2; exit 1 ;; esac\nexec "{sys._base_executable}" "$@"',  # type: ignore[attr-defined]
    )
    assert project.start("check").failed_with(Sentence.VENV_FAILED, "Error: no luck", "python3 -I -m venv")


def test_pip_that_fails_for_another_reason(project: Project) -> None:
    project.pip_behaves("other")
    assert project.start("check").failed_with(Sentence.PIP_FAILED, "that is not known", "darkroom-install.log")


def test_pip_that_does_nothing(project: Project) -> None:
    project.pip_behaves("nothing")
    assert project.start("check").failed_with(Sentence.STILL_MISSING, "alpha>=1,<2, beta>=2")


def test_another_start_is_at_work(tmp_path: Path) -> None:
    waits: list[None] = []
    with marker.lock(tmp_path, 0, lambda: None):
        with (
            pytest.raises(Failure) as failure,
            marker.lock(tmp_path, 0.1, lambda: waits.append(None)),
        ):
            pytest.fail("two hold the lock")
        assert failure.value.sentence is Sentence.BUSY
        assert waits
    with marker.lock(tmp_path, 0, lambda: None):
        pass


def test_damaged_program(project: Project) -> None:
    project.make_environment()
    project.write("pyproject.toml", "[project\n")
    assert project.start("check").failed_with(Sentence.INCOMPLETE, "pyproject.toml")


def test_an_unexpected_error(project: Project) -> None:
    project.make_environment()
    project.write("pyproject.toml", '[project]\ndependencies = ["no requirement at all"]\n')
    assert project.start("check").failed_with(
        Sentence.UNEXPECTED, "InvalidRequirement", "DARKROOM_DEBUG=1 ./start-ui.sh"
    )


def job(root: Path, env: Environment) -> install.Job:
    """A job in a project that requires a package that does not exist."""
    (root / "pyproject.toml").touch()
    return install.Job(root, env, ["nowhere-to-be-found>=1"], {})
