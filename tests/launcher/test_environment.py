"""Which environment, made by which Python, and the words about it."""

import os
from pathlib import Path

import pytest

from launcher import environment, fix_commands, interpreter
from launcher.fix_commands import Machine
from launcher.interpreter import Interpreter
from launcher.messages import Failure, Sentence
from launcher.pip_run import OutputReader
from launcher.progress import Progress

APT = Machine("apt-get", is_root=False)


def test_choice_of_environment(tmp_path: Path) -> None:
    def chosen(**variables: str) -> tuple[str, Path]:
        return tuple(environment.choose(tmp_path, variables))  # type: ignore[return-value]

    assert chosen() == ("project", tmp_path / ".venv")
    assert chosen(CONDA_PREFIX="", VIRTUAL_ENV="") == ("project", tmp_path / ".venv")
    assert chosen(VIRTUAL_ENV="/v") == ("venv", Path("/v"))
    assert chosen(CONDA_PREFIX="/c") == ("conda", Path("/c"))
    assert chosen(VIRTUAL_ENV=str(tmp_path / ".venv")) == ("project", tmp_path / ".venv")
    both = {"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c"}
    assert chosen(**both)[0] == "venv"
    assert chosen(**both, PATH=os.pathsep.join(["/c/bin", "/v/bin"]))[0] == "conda"
    assert chosen(**both, PATH=os.pathsep.join(["/v/bin", "/c/bin"]))[0] == "venv"


def found(name: str, *, tkinter: bool = True, venv: bool = True, minor: int = 12) -> Interpreter:
    return Interpreter((name,), Path(f"/usr/bin/{name}"), (3, minor, 1), tkinter, venv)


@pytest.mark.parametrize(
    ("pythons", "needs_tkinter", "expected"),
    [
        ([found("a"), found("b")], True, "a"),
        ([found("a", minor=10), found("b", minor=15), found("c")], True, "c"),
        ([found("a", tkinter=False), found("b")], False, "b"),
        ([found("a", tkinter=False), found("b", venv=False)], False, "a"),
        ([found("a", tkinter=False), found("b", venv=False)], True, Sentence.NO_TKINTER),
        ([found("a", venv=False)], True, Sentence.NO_VENV),
    ],
)
def test_choice_of_python(pythons: list[Interpreter], needs_tkinter: bool, expected: str | Sentence) -> None:
    by_name = {python.command[0]: python for python in pythons}

    def find() -> Interpreter:
        return interpreter.find(
            [[name] for name in ("missing", *by_name)],
            needs_tkinter=needs_tkinter,
            machine=APT,
            ask=lambda command: by_name.get(command[0]),
        )

    if isinstance(expected, Sentence):
        with pytest.raises(Failure) as failure:
            find()
        assert failure.value.sentence is expected
    else:
        assert find().command == (expected,)


def test_asking_a_python_that_is_none() -> None:
    assert interpreter.ask(["no-such-python"]) is None
    assert interpreter.ask(["true"]) is None


@pytest.mark.parametrize(
    ("machine", "python", "conda", "command"),
    [
        (APT, "/usr/local/bin/python3.12", None, "sudo apt-get install python3.12-tk"),
        (Machine("apt-get", True), "/usr/local/bin/python3.12", None, "apt-get install python3.12-tk"),
        (Machine("dnf", False), "/usr/local/bin/python3.12", None, "sudo dnf install python3.12-tkinter"),
        (Machine("pacman", False), "/usr/bin/python3", None, "sudo pacman -S tk"),
        (Machine("zypper", False), "/usr/local/bin/python3.12", None, "sudo zypper install python312-tk"),
        (Machine("brew", False), "/opt/homebrew/bin/python3", None, "brew install python-tk@3.12"),
        (APT, "/c/bin/python", "/c d", "conda install -p '/c d' tk"),
        (APT, "/home/me/.pyenv/versions/3.12.1/bin/python3", None, "sudo apt-get install tk-dev && pyenv install"),
        (Machine(None, False), "/opt/python", None, "(get Python 3.12 with Tcl/Tk from"),
    ],
)
def test_command_for_tkinter(machine: Machine, python: str, conda: str | None, command: str) -> None:
    prefix = Path(conda) if conda else None
    assert fix_commands.tkinter_command(machine, Path(python), (3, 12), prefix).startswith(command)


def test_commands_for_the_systems_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix_commands, "_is_default", lambda python, version: True)
    python = Path("/usr/bin/python3")
    assert fix_commands.tkinter_command(APT, python, (3, 11), None) == "sudo apt-get install python3-tk"
    assert fix_commands.venv_command(APT, python, (3, 11)) == "sudo apt-get install python3-venv"
    assert fix_commands.tkinter_command(Machine("dnf", True), python, (3, 13), None) == "dnf install python3-tkinter"
    assert fix_commands.xvfb_command(APT) == "sudo apt-get install xvfb"


def test_reading_the_output_of_pip() -> None:
    reading = OutputReader()
    assert (reading.state(0), reading.share(0)) == ("Resolving packages", 0.0)
    lines = [
        "Collecting torch==2.13.0",
        "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (30 kB)",
        "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (820.1 MB)",
    ]
    assert all(reading.take(line) for line in lines)
    assert reading.state(0) == "Downloading package 1: torch (820.1 MB)"
    assert not reading.take("Progress 190000000 of 820000000")
    assert reading.state(0) == "Downloading package 1: torch (190 MB of 820 MB)"
    reading.take("WARNING: Retrying (Retry(total=1)) after connection broken")
    assert "retrying" in reading.state(0)
    assert reading.share(0) == pytest.approx(0.5 * 190 / 820 / 2), (
        "a large package moves the bar while it is downloaded"
    )
    shares = [reading.share(0)]
    for name in ("alpha-x", "beta"):
        reading.take(f"Collecting {name}")
        reading.take(f"  Downloading {name}-1.0-py3-none-any.whl (30 kB)")
        shares.append(reading.share(0))
    assert 0.0 < shares[0] < shares[1] < shares[2] < 0.5, "how many will come is not known"
    reading.take("Installing collected packages: Alpha_X, beta, torch")
    assert reading.state(0) == "Installing package 1 of 3: alpha-x"
    assert reading.state(2) == "Installing package 3 of 3: torch"
    assert [reading.share(number) for number in (0, 1, 3, 9, 2)] == [0.5, pytest.approx(2 / 3), 1.0, 1.0, 1.0]
    assert reading.state(9) == "Installing package 3 of 3: torch"


def test_packages_that_are_collected_first_count_once_they_are_downloaded() -> None:
    reading = OutputReader(2)
    for name in ("alpha", "beta", "gamma"):
        reading.take(f"Collecting {name}")
        reading.take(f"  Downloading {name}-1.0-py3-none-any.whl.metadata (30 kB)")
    assert reading.share(0) == 0.0
    shares = []
    for name in ("gamma", "beta", "alpha"):
        reading.take(f"Downloading {name}-1.0-py3-none-any.whl (30.0 MB)")
        reading.take("Progress 15000000 of 30000000")
        shares.append(reading.share(0))
    assert shares == [0.0625, 0.1875, 0.3125]


def test_progress_on_a_terminal_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = Progress(sys.stderr)
    progress.show("one")
    progress.show("two " * 100)
    progress.print_line("done")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "one · 0:0" in said
    assert max(map(len, said.split("\r"))) < 90
