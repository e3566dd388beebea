"""The wheels for a machine without a package index: what pip is asked for, and what is sent."""

from __future__ import annotations

import json
import platform
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from launcher.pip_run import PipError
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT, wheels_dir
from tests.builders.wheels import write_wheel
from trainer.__main__ import main
from trainer.remote import agent, wheels
from trainer.remote.connection import Connection
from trainer.remote.record import Remote, RemotesFile
from trainer.remote.wheels import WheelDownload, download_wheels, offline_environment, platform_tags, wheel_tree

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Wheels are downloaded on Linux only.")


class Machine:
    """A machine of this process, which answers with its hardware at once."""

    def __init__(self, folder: Path, **facts: object) -> None:
        self.remote, self.conditions = Remote("box", "host"), {"python_version": "3.12"}
        self._agent = agent.Agent(str(folder))
        self.facts = {**self._agent.hello(b"")[0], "version": [3, 12], "glibc": "2.31", **facts}

    def call(self, request: str, content: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        if request == "command":
            assert Path(arguments["cwd"], "launcher", "torch_build.py").is_file()
            found = {"build": "nvidia", "gpu": [590.0, 8.9, 8.9], "conditions": self.conditions}
            return 0, f"a warning\n{json.dumps(found)}\nDeprecationWarning: another".encode()
        answer: tuple[Any, bytes] = getattr(self._agent, request)(content, **arguments)
        return answer


class Pip:
    """Stands in for pip: it has no wheel of one package, which it builds, and none of bitsandbytes."""

    def __init__(self, folder: Path, lacks: str, cause: str = "", *, is_fitting: bool = True) -> None:
        self.commands: list[list[str]] = []
        self._folder, self._lacks, self._cause, self._is_fitting = folder, lacks, cause, is_fitting
        self._versions = wheels.requirements.tested_versions(PROGRAM_ROOT)

    def __call__(self, command: list[str], *, log: Any, **_others: object) -> int:
        given = command[command.index("wheel" if "wheel" in command else "download") :]
        self.commands.append(given)
        built = self._folder / f"{self._lacks}-1.0-py3-none-any.whl"
        lacks = "bitsandbytes" if any("bitsandbytes" in word for word in given) else self._lacks
        if given[0] == "wheel" and lacks == self._lacks:
            built.touch()
        elif lacks != self._lacks or not self._is_fitting or not built.exists():
            log.write(f"ERROR: No matching distribution found for {lacks}==1.0\\n")
            raise PipError(self._cause, "ERROR: no")
        else:
            new, *lines = given[given.index("--dest") + 1 :]
            for name in map(wheels.requirements.name_of, lines):
                chosen = next((line.partition("==")[2] for line in lines if line.startswith(f"{name}==")), "")
                write_wheel(Path(new), name, chosen or self._versions[name])
        return 0


def test_the_wheels_are_those_for_the_machine_and_what_has_none_is_built(tmp_path: Path) -> None:
    machine, folder = platform.machine(), tmp_path / "wheels"
    pip = Pip(folder, "dadaptation")
    page = f'<a href="torch-2.13.0%2Bcu130-cp312-cp312-manylinux_2_28_{machine}.whl">'
    there = cast(Connection, Machine(tmp_path / "there"))
    downloaded = download_wheels(there, folder, run=pip, page=lambda url: page)
    first, build, again, of_extra, build_of_extra, *others = pip.commands
    files = [path.name for path in folder.glob("*.whl")]
    names = {name.partition("-")[0] for name in files}
    assert downloaded == WheelDownload(len(files), ("bitsandbytes",))
    assert {"torch", "diffusers", "dadaptation", "rapidocr", "onnxruntime", "pyarrow"} <= names
    assert not any("tksheet" in words[-1] for words in others), "it is the window's"
    assert (of_extra[-1].partition(">")[0], build_of_extra[-1]) == ("bitsandbytes", "bitsandbytes")
    assert [word for word in first if word not in again] == [first[first.index("--dest") + 1]]
    assert first[:1] + first[-1:] == ["download", again[-1]]
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


def test_what_has_no_wheel_is_named(tmp_path: Path) -> None:
    pip = Pip(tmp_path / "wheels", "dadaptation", is_fitting=False)
    there = cast(Connection, Machine(tmp_path / "there", machine="pdp11"))
    message = r"dadaptation has no wheel for box \(linux pdp11, Python 3.12\), and none that fits could be built here"
    with pytest.raises(DarkroomError, match=message):
        download_wheels(there, tmp_path / "wheels", run=pip, page=lambda url: None)


@pytest.mark.full
def test_pip_chooses_for_the_other_python_and_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, and the conditions of the machine: what they exclude is nowhere."""
    index, folder = tmp_path / "index", tmp_path / "wheels"
    index.mkdir()
    torch = wheels.requirements.tested_versions(PROGRAM_ROOT)["torch"]
    conditions = ("onlyarm; platform_machine == 'aarch64'", "onlyx86; platform_machine == 'x86_64'")
    write_wheel(index, "torch", torch, tag="cp312-cp312-manylinux_2_28_aarch64")
    write_wheel(index, "needed", "1", requires=(*conditions, "older; python_version < '3.12'"))
    write_wheel(index, "onlyarm", "1", tag="cp312-cp312-manylinux_2_17_aarch64", requires=("deep[more]",))
    write_wheel(index, "deep", "1", requires=("deeper; extra == 'more'", "nowhere; extra == 'other'"))
    write_wheel(index, "deeper", "1")
    write_wheel(index, "extra", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setattr(wheels.requirements, "project_requirements", lambda _root, extras: ["needed>=1", *extras])
    monkeypatch.setattr(wheels.requirements, "optional_requirements", lambda _root: ["extra>=1", "ui", "needed>=1"])
    machine = Machine(tmp_path / "there", machine="aarch64")
    machine.conditions = {"platform_machine": "aarch64", "python_version": "3.12", "python_full_version": "3.12.1"}
    there = cast(Connection, machine)
    assert download_wheels(there, folder, page=lambda url: None) == WheelDownload(6)
    names = {path.name.partition("-")[0] for path in folder.glob("*.whl")}
    assert names == {"torch", "needed", "onlyarm", "deep", "deeper", "extra"}


@pytest.mark.parametrize("facts", [{"system": "darwin"}, {"glibc": ""}])
def test_a_machine_whose_wheels_are_not_known_is_named(tmp_path: Path, facts: dict[str, str]) -> None:
    with pytest.raises(DarkroomError, match=r"The packages for box \(.*\) cannot be downloaded from here") as refused:
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
    monkeypatch.setattr("trainer.cli.remote._connect", lambda remote: nullcontext())
    monkeypatch.setattr(
        wheels, "download_wheels", lambda connection, folder: asked.append(folder) or WheelDownload(74, ("x",))
    )
    RemotesFile().add(Remote("box", "host", price_per_hour=0.5))
    assert main(["remote", "wheels", "box"]) == 0
    assert RemotesFile().find("box") == Remote("box", "host", price_per_hour=0.5, wheels_dir=str(wheels_dir("box")))
    assert asked == [wheels_dir("box")]
    printed = capsys.readouterr().out
    assert "74 wheels are in" in printed
    assert "Without x, which could not be downloaded" in printed
