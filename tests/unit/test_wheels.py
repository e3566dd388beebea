"""The wheels for a machine without a package index: what pip is asked for, and what is sent."""

from __future__ import annotations

import platform
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from launcher.pip_run import PipError
from modules.system.errors import DarkroomError
from modules.system.paths import wheels_dir
from trainer.__main__ import main
from trainer.remote import agent, wheels
from trainer.remote.connection import Connection
from trainer.remote.record import Remote, RemotesFile
from trainer.remote.wheels import download_wheels, offline_environment, platform_tags, wheel_tree

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Wheels are downloaded on Linux only.")


class Machine:
    """A machine of this process, which answers with its hardware at once."""

    def __init__(self, folder: Path, **facts: object) -> None:
        self.remote = Remote("box", "host")
        self._agent = agent.Agent(str(folder))
        self.facts = {**self._agent.hello(b"")[0], "version": [3, 12], "glibc": "2.31", **facts}

    def call(self, request: str, content: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        if request == "command":
            assert "torch_build" in arguments["arguments"][-1]
            assert Path(arguments["cwd"], "launcher", "torch_build.py").is_file()
            return 0, b'["nvidia", 590.0, 8.9, 8.9]'
        answer: tuple[Any, bytes] = getattr(self._agent, request)(content, **arguments)
        return answer


class Pip:
    """Stands in for pip: it has no wheel of one package, which it builds."""

    def __init__(self, folder: Path, lacks: str, cause: str = "") -> None:
        self.commands: list[list[str]] = []
        self._folder, self._lacks, self._cause = folder, lacks, cause

    def __call__(self, command: list[str], *, log: Any, **_others: object) -> int:
        self.commands.append(command[4:])
        built = self._folder / f"{self._lacks}-1.0-py3-none-any.whl"
        if command[4] == "wheel":
            built.touch()
        elif not built.exists():
            log.write(f"ERROR: No matching distribution found for {self._lacks}==1.0\\n")
            raise PipError(self._cause, "ERROR: no")
        (self._folder / "torch-2-cp312-cp312-linux_x86_64.whl").touch()
        return 0


def test_the_wheels_are_those_for_the_machine_and_what_has_none_is_built(tmp_path: Path) -> None:
    machine, folder = platform.machine(), tmp_path / "wheels"
    pip = Pip(folder, "dadaptation")
    page = f'<a href="torch-2.13.0%2Bcu130-cp312-cp312-manylinux_2_28_{machine}.whl">'
    there = cast(Connection, Machine(tmp_path / "there"))
    assert download_wheels(there, folder, run=pip, page=lambda url: page) == 2
    first, build, again = pip.commands
    assert first == again
    assert first[0] == "download"
    assert {"--only-binary=:all:", "torch==2.13.0+cu130", f"--platform=manylinux_2_31_{machine}"} <= set(first)
    assert f"--platform=manylinux_2_32_{machine}" not in first
    assert first[first.index("--python-version") + 1] == "3.12"
    assert first[first.index("--extra-index-url") + 1].endswith("cu130")
    assert any(word.startswith("diffusers>=") for word in first)
    assert build[0] == "wheel"
    assert build[-1] == "dadaptation"
    assert {file.name for file in wheel_tree(folder).files} == {path.name for path in folder.glob("*.whl")}


def test_a_lost_network_is_not_a_missing_wheel(tmp_path: Path) -> None:
    pip = Pip(tmp_path / "wheels", "alpha", cause="network")
    with pytest.raises(DarkroomError, match="could not be downloaded"):
        download_wheels(
            cast(Connection, Machine(tmp_path / "there")), tmp_path / "wheels", run=pip, page=lambda url: None
        )
    assert len(pip.commands) == 1


@pytest.mark.parametrize("facts", [{"machine": "pdp11"}, {"system": "darwin"}, {"glibc": ""}])
def test_a_computer_that_is_not_like_the_machine_says_so(tmp_path: Path, facts: dict[str, str]) -> None:
    with pytest.raises(DarkroomError, match="cannot be downloaded on this computer") as refused:
        download_wheels(cast(Connection, Machine(tmp_path, **facts)), tmp_path / "wheels")
    assert "--wheels FOLDER" in refused.value.advice


def test_a_folder_without_wheels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DarkroomError, match="There are no wheels"):
        wheel_tree(tmp_path)


def test_pip_asks_nobody_else() -> None:
    variables = offline_environment("/data/my folder/trees/ab")
    assert variables["PIP_NO_INDEX"] == "1"
    assert variables["PIP_FIND_LINKS"] == "file:///data/my%20folder/trees/ab"
    assert platform_tags("x86_64", "2.6")[:2] == ["manylinux_2_6_x86_64", "manylinux_2_5_x86_64"]


def test_the_machine_installs_from_what_was_downloaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("trainer.cli.remote._connected", lambda remote: nullcontext())
    monkeypatch.setattr(wheels, "download_wheels", lambda connection, folder: asked.append(folder) or 74)
    RemotesFile().add(Remote("box", "host", price_per_hour=0.5))
    assert main(["remote", "wheels", "box"]) == 0
    assert RemotesFile().find("box") == Remote("box", "host", price_per_hour=0.5, wheels_dir=str(wheels_dir("box")))
    assert asked == [wheels_dir("box")]
    assert "74 wheels are in" in capsys.readouterr().out
