"""Whole starts of start-ui.sh: what is installed, into what, and what takes over."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.environment import Environment, Kind
from launcher.messages import Sentence
from tests.launcher import fake_pip
from tests.launcher.conftest import CONSTRAINTS, PROJECT, Project

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="start-ui.sh is for POSIX systems")


def site_packages(prefix: Path) -> Path:
    return next(prefix.glob("lib/python*/site-packages"))


def test_first_start_makes_the_environment_and_second_installs_nothing(project: Project) -> None:
    first = project.start("train", "a b", "--set", "x=ü")
    assert first.exit_code == 0, first.said
    assert "Creating the environment" in first.said
    assert "Installed 2 packages" in first.said
    assert first.report["arguments"] == ["train", "a b", "--set", "x=ü"]
    assert first.report["module"] == "trainer"
    assert Path(first.report["prefix"]) == project.root / ".venv"

    second = project.start("train")
    assert (second.exit_code, second.said, len(project.pip_calls)) == (0, "", 1)

    benchmark = project.start("benchmark", "--only", "loop")
    assert (benchmark.report["module"], benchmark.report["arguments"]) == ("benchmarks", ["--only", "loop"])
    assert project.start("make-demo-model").report["module"] == "demo.make"


def test_pip_is_held_to_the_tested_versions_and_to_the_environment(project: Project) -> None:
    assert project.start("check", PIP_TARGET="/elsewhere", PIP_USER="1").exit_code == 0
    (call,) = project.pip_calls
    assert {"alpha==1.5", "beta==2.5"} <= set(call["constraints"])
    assert {"alpha>=1,<2", "beta>=2"} <= set(call["arguments"])
    assert not [word for word in call["arguments"] if word.startswith("gamma")]
    assert call["variables"].get("PIP_TARGET") is None
    assert call["variables"]["PIP_USER"] == "0"


def test_works_from_any_folder_and_through_a_link(project: Project, tmp_path: Path) -> None:
    project.make_environment()
    link = tmp_path / "darkroom"
    link.symlink_to(project.root / "start-ui.sh")
    elsewhere = tmp_path / "ein anderer Ört"
    elsewhere.mkdir()
    answer = subprocess.run(
        [link, "cache"],
        cwd=elsewhere,
        env=project.variables(None, {}),
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(answer.stdout)
    assert report["caller"] == str(elsewhere)
    assert report["folder"] == str(project.root)
    assert report["path"].split(os.pathsep)[0] == str(project.root / ".venv" / "bin")


def test_exit_code_is_the_programs(project: Project) -> None:
    project.make_environment()
    assert project.start("train", STUB_EXIT="7").exit_code == 7


def test_test_verb_installs_what_tests_need_and_runs_pytest(project: Project) -> None:
    project.tool("Xvfb", "exit 1")
    started = project.start("test", "-k", "a or b", STUB_EXIT="5")
    assert started.report["module"] == "pytest"
    assert started.report["arguments"] == ["-k", "a or b"]
    assert started.exit_code == 5
    assert {"gamma>=1", "delta>=1"} <= set(project.pip_calls[0]["arguments"])


def test_all_tests_run_in_several_processes(project: Project) -> None:
    project.tool("Xvfb", "exit 1")
    arguments = project.start("test").report["arguments"]
    assert arguments == ["-n", "logical", "--maxprocesses", "4", "--dist", "worksteal"]


def test_every_row_of_the_matrices_runs_on_several_processors_too(project: Project) -> None:
    project.tool("Xvfb", "exit 1")
    in_parallel = ["-n", "logical", "--maxprocesses", "4", "--dist", "worksteal", "-m", "full or not full"]
    assert project.start("test", "--full").report["arguments"] == in_parallel
    assert project.start("test", "tests/unit", "--full").report["arguments"] == [*in_parallel, "tests/unit"]


def test_window_starts_on_a_real_display(project: Project) -> None:
    started = project.start(DISPLAY=os.environ.get("DISPLAY", ""))
    assert started.exit_code == 0, started.said
    assert started.report["module"] == "ui"
    assert "gamma>=1" in project.pip_calls[0]["arguments"]


def test_help_needs_nothing(project: Project) -> None:
    answer = subprocess.run(
        [project.root / "start-ui.sh", "--help"], env=project.variables(None, {}), capture_output=True, text=True
    )
    assert answer.returncode == 0
    assert "python -m trainer VERB" in answer.stdout
    assert not (project.root / ".venv").exists()


def test_missing_packages_are_found_from_metadata(project: Project) -> None:
    env = project.make_environment()
    for name, version in (("alpha", "1.1"), ("beta", "1.0")):
        fake_pip.install(name, version, folder=site_packages(env.prefix))
    assert project.start("check").exit_code == 0
    assert len(project.pip_calls) == 1  # beta 1.0 is too old
    shutil.rmtree(site_packages(env.prefix) / "alpha-1.5.dist-info")
    assert project.start("check").exit_code == 0
    assert len(project.pip_calls) == 2


@pytest.mark.parametrize("kind", ["venv", "conda"])
def test_the_active_environment_is_used(project: Project, kind: str) -> None:
    env = project.make_environment("conda" if kind == "conda" else "venv")
    started = project.start("check", active=env)
    assert Path(started.report["prefix"]) == env.prefix
    assert not (project.root / ".venv").exists()


def test_a_working_torch_stays(project: Project) -> None:
    project.write("pyproject.toml", '[project]\ndependencies = ["torch>=2.9,<3", "alpha>=1"]\n')
    env = project.make_environment("conda")
    fake_pip.install("torch", "2.10.0+cu128", folder=site_packages(env.prefix))
    assert project.start("check", active=env).exit_code == 0
    (call,) = project.pip_calls
    assert "torch==2.10.0+cu128" in call["constraints"]
    assert not [word for word in call["arguments"] if word.startswith("torch==")]


def test_torch_comes_first_and_from_the_index_that_lists_it(project: Project, tmp_path: Path) -> None:
    import sysconfig

    project.write("pyproject.toml", '[project]\ndependencies = ["torch>=2.9,<3", "alpha>=1"]\n')
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    platform = sysconfig.get_platform().replace("-", "_")
    (tmp_path / "index" / "torch").mkdir(parents=True)
    page = f'<a href="torch-2.13.0%2Bcpu-{tag}-{tag}-{platform}.whl">torch</a>'
    (tmp_path / "index" / "torch" / "index.html").write_text(page)
    index = (tmp_path / "index").as_uri()
    started = project.start("check", DARKROOM_TORCH_INDEX=index)
    assert started.exit_code == 0, started.said
    torch_call, rest = project.pip_calls
    assert torch_call["arguments"][-3:] == ["--extra-index-url", index, "torch==2.13.0+cpu"]
    assert "torch==2.13.0+cpu" in torch_call["constraints"]
    assert "torch==2.13.0+cpu" in rest["constraints"]
    assert "--extra-index-url" not in rest["arguments"]


def test_packages_of_others_in_an_active_environment_are_pinned(project: Project) -> None:
    env = project.make_environment("venv")
    fake_pip.install("alpha", "1.1", folder=site_packages(env.prefix))
    fake_pip.install("theirs", "0.3", folder=site_packages(env.prefix))
    assert project.start("check", active=env).exit_code == 0
    assert {"alpha==1.1", "theirs==0.3", "beta==2.5"} <= set(project.pip_calls[0]["constraints"])

    # What Darkroom installed there itself, a later Darkroom may change.
    project.write("pyproject.toml", '[project]\ndependencies = ["alpha>=1,<2", "beta>=3"]\n')
    project.write("constraints.txt", "alpha==1.5\nbeta==3.0\n")
    fake_pip.install("beta", "2.6", folder=site_packages(env.prefix))
    project.start("check", active=env)
    assert {"alpha==1.1", "beta==3.0"} <= set(project.pip_calls[1]["constraints"])


@pytest.mark.parametrize("is_needed", [False, True])
def test_the_setuptools_of_a_new_environment_is_updated_unless_a_package_needs_it(
    project: Project, is_needed: bool
) -> None:
    """Python 3.11's venv begins with one that torch refuses."""
    project.write("constraints.txt", CONSTRAINTS + "setuptools==84.2.1\n")
    env = project.make_environment("venv")
    fake_pip.install("setuptools", "65.5.0", folder=site_packages(env.prefix))
    fake_pip.install("theirs", "0.3", ("setuptools<70",) if is_needed else (), folder=site_packages(env.prefix))
    assert project.start("check", active=env).exit_code == 0
    expected = "setuptools==65.5.0" if is_needed else "setuptools==84.2.1"
    assert expected in project.pip_calls[0]["constraints"]


def interrupt(project: Project, number: int, active: Environment | None = None) -> tuple[int, str]:
    """Start an installation, send a signal in the middle of its first package; return the exit code and the output."""
    project.pip_behaves("hang")
    running = subprocess.Popen(
        [project.root / "start-ui.sh", "check"],
        env=project.variables(active, {}),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A suite that runs in the background ignores it, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for(project.pip / "hanging")
    os.killpg(running.pid, number)
    _, said = running.communicate(timeout=120)
    project.pip_behaves("good")
    return running.returncode, said


@pytest.mark.parametrize("kind", ["project", "venv"])
@pytest.mark.parametrize("is_update", [False, True])
def test_a_killed_installation_is_repaired(project: Project, kind: Kind, is_update: bool) -> None:
    """An update of a package that was killed used to leave half of the new one for ever."""
    env = project.make_environment(kind)
    active = None if kind == "project" else env
    if is_update:
        assert project.start("check", active=active).exit_code == 0
        project.write("pyproject.toml", PROJECT.replace("alpha>=1,<2", "alpha>=2"))
        project.write("constraints.txt", CONSTRAINTS.replace("alpha==1.5", "alpha==2.5"))
    interrupt(project, signal.SIGKILL, active)
    again = project.start("check", active=active)
    assert again.exit_code == 0, again.said
    assert "installing again: alpha" in again.said
    assert project.start("check", active=active).said == ""
    assert not (env.prefix / ".darkroom-unfinished").exists()


def test_an_interrupted_installation_is_reported(project: Project) -> None:
    code, said = interrupt(project, signal.SIGINT)
    assert code == 130
    assert said.strip().splitlines()[-1] == Sentence.INTERRUPTED.value.format(command="./start-ui.sh")


def test_a_failed_installation_is_tried_again_by_each_start_and_nothing_starts_in_between(project: Project) -> None:
    for mode, sentence in (("network", Sentence.NO_NETWORK), ("other", Sentence.PIP_FAILED)):
        project.pip_behaves(mode)
        assert project.start("check").failed_with(sentence)
        assert (project.root / ".venv" / ".darkroom-unfinished").is_file()
    project.pip_behaves("good")
    assert project.start("check").exit_code == 0
    assert project.start("check").said == ""


@pytest.mark.parametrize("content", ['{"stage": "creating"}', ""])
def test_an_unfinished_environment_is_made_anew(project: Project, content: str) -> None:
    """With another Python than its own, which Windows could not remove while it runs."""
    env = project.make_environment(with_pip=False)
    project.write(".venv/.darkroom-unfinished", content)
    env.python.unlink()
    project.write(".venv/bin/python", "#!/bin/sh\necho half >&2\n")
    env.python.chmod(0o755)
    started = project.start("check")
    assert "again because it was not completed" in started.said
    assert "half" not in started.said
    assert started.exit_code == 0


def test_an_old_environment_is_made_anew(project: Project) -> None:
    env = project.make_environment()
    env.python.unlink()
    env.python.symlink_to("/nowhere/python3.11")
    started = project.start("check")
    assert "again because its Python no longer exists" in started.said
    assert started.exit_code == 0

    config = env.prefix / "pyvenv.cfg"
    config.write_text(config.read_text().replace("version = 3.", "version = 2."))
    started = project.start("check")
    assert "again because it was created for Python 2." in started.said
    assert started.exit_code == 0


def test_verbs_need_neither_tkinter_nor_a_display(project: Project) -> None:
    project.python(without=("tkinter",))
    started = project.start("sample")
    assert started.exit_code == 0, started.said


def test_a_python_that_has_everything_is_preferred(project: Project) -> None:
    project.python(without=("tkinter",))
    project.python("python3.13")
    assert project.start("sample").exit_code == 0
    project.python("python3", without=("ensurepip",))
    shutil.rmtree(project.root / ".venv")
    assert project.start("sample").exit_code == 0


def wait_for(path: Path) -> None:
    """Until another process has written a file."""
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
