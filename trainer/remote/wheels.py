"""Packages for a machine without a package index: downloaded here as wheels for it, sent, and installed from there.

pip chooses wheels for another Python and processor by its options, but evaluates the conditions of requirements for the
computer that it runs on. So it downloads single packages, and what these require is read from their wheels.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from launcher import requirements, torch_build
from launcher.messages import Failure
from launcher.pip_run import PipError, run_pip
from launcher.progress import Progress
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from trainer.remote.connection import Connection, printed_by
from trainer.remote.inputs import program_tree
from trainer.remote.trees import Tree, send_trees, stat_file

_LOG = "pip.log"
_OPTIONS = ("--no-input", "--no-color", "--disable-pip-version-check")
_WITHOUT_WHEEL = re.compile(r"ERROR: (?:No matching distribution found for|Cannot install) ([\w.-]+)")
_OLDEST_GLIBC = 5
_OF_WINDOW = ("ui",)
_DETECT = """
import json, os, platform, sys
from launcher import torch_build
build, gpu = torch_build.detect()
print(json.dumps({"build": build, "gpu": gpu, "conditions": {
    "implementation_name": sys.implementation.name,
    "implementation_version": platform.python_version(),
    "os_name": os.name,
    "platform_machine": platform.machine(),
    "platform_python_implementation": platform.python_implementation(),
    "platform_release": platform.release(),
    "platform_system": platform.system(),
    "platform_version": platform.version(),
    "python_full_version": platform.python_version(),
    "python_version": ".".join(platform.python_version_tuple()[:2]),
    "sys_platform": sys.platform,
}}))
"""


@dataclass(frozen=True, slots=True)
class WheelDownload:
    """The number of wheels in a folder, and the packages of extras that are not available for the machine."""

    num_wheels: int
    left_out: tuple[str, ...] = ()


def wheel_tree(folder: Path) -> Tree:
    """Return the wheels in a folder. Raises DarkroomError if there are none."""
    files = tuple(f for path in sorted(folder.glob("*.whl")) for f in stat_file(path, path.name))
    if not files:
        raise DarkroomError(f"There are no wheels in {folder}.", advice="Fill it with: remote wheels NAME")
    return Tree(files)


def offline_environment(place: str) -> dict[str, str]:
    """Return the variables with which the launcher installs from a folder of wheels there, and from nothing else."""
    links = PurePosixPath(place).as_uri()
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": links,
        torch_build.OVERRIDE: "default",
        "PIP_CONFIG_FILE": "/dev/null",
    }


def download_wheels(
    connection: Connection,
    folder: Path,
    *,
    run: Callable[..., int] = run_pip,
    page: Callable[[str], str | None] | None = None,
) -> WheelDownload:
    """Download the wheels of all packages of a run on a machine, and return a summary of the folder.

    What is there already is not downloaded again. A package without a wheel is built here. Extras that cannot be had
    are left out. `run` is pip, and `page` downloads a page. Raises DarkroomError, ConnectionLostError, OSError.
    """
    _refuse_unknown(connection.remote.name, connection.facts)
    folder.mkdir(parents=True, exist_ok=True)
    pins = requirements.tested_versions(PROGRAM_ROOT)
    torch, conditions = _torch_source(connection, pins["torch"], page)
    download = _Download(connection, folder, run, torch, conditions)
    needed = requirements.project_requirements(PROGRAM_ROOT, ())
    download.fetch([torch.requirement, *needed])
    left_out = []
    others = {*needed, *requirements.project_requirements(PROGRAM_ROOT, _OF_WINDOW)}
    for line in dict.fromkeys(line for line in requirements.optional_requirements(PROGRAM_ROOT) if line not in others):
        try:
            download.fetch([line])
        except DarkroomError:
            left_out.append(requirements.name_of(line))
    return WheelDownload(len(wheel_tree(folder).files), tuple(left_out))


class _Download:
    """pip's downloads for one machine."""

    def __init__(
        self,
        connection: Connection,
        folder: Path,
        run: Callable[..., int],
        torch: torch_build.Source,
        conditions: Mapping[str, str],
    ) -> None:
        facts = connection.facts
        self._connection, self._folder, self._run, self._conditions = connection, folder, run, conditions
        self._constraints = ["--constraint", str(PROGRAM_ROOT / "constraints.txt")]
        python = ["--python-version", ".".join(map(str, facts["version"])), "--only-binary=:all:"]
        tags = [f"--platform={tag}" for tag in platform_tags(facts["machine"], facts["glibc"])]
        index = ["--extra-index-url", torch.index_url] if torch.index_url else []
        options = ["--no-deps", "--find-links", str(folder), *python, *tags, *index, *self._constraints]
        self._download = ["-m", "pip", "download", *_OPTIONS, *options]
        self._log_file = folder / _LOG
        self._built = set[str]()
        self._present = dict[requirements.Package, requirements.InstalledPackage]()

    def fetch(self, lines: Sequence[str]) -> None:
        """Download the packages of some requirements, and those that they require in turn. Raises DarkroomError."""
        fetched = set[str]()
        while missing := requirements.unmet_requirements(lines, self._present, self._conditions):
            wanted = dict.fromkeys(entry.requirement.partition(";")[0].strip() for entry in missing)
            if fetched.issuperset(wanted):
                raise self._failure(PipError("conflict", f"nothing meets all of these: {', '.join(wanted)}"))
            fetched.update(wanted)
            self._fetch_only(wanted)

    def _fetch_only(self, lines: Iterable[str]) -> None:
        """Download packages without their requirements, and build those without a wheel. Raises DarkroomError."""
        while True:
            try:
                with tempfile.TemporaryDirectory(dir=self._folder) as new:
                    self._pip([*self._download, "--dest", new, *lines])
                    self._present |= requirements.of_wheels(Path(new))
                    for wheel in Path(new).iterdir():
                        wheel.replace(self._folder / wheel.name)
                return
            except PipError as error:
                match = _WITHOUT_WHEEL.search(self._log_file.read_text(encoding="utf-8"))
                if error.cause not in ("", "conflict") or match is None:
                    raise self._failure(error) from error
                package = match[1]
                if package in self._built:
                    raise self._no_wheel(package) from error
            self._built.add(package)
            try:
                build = ["wheel", *_OPTIONS, "--no-deps", "--wheel-dir", str(self._folder), *self._constraints, package]
                self._pip(["-m", "pip", *build])
            except PipError as error:
                raise self._no_wheel(package) from error

    def _pip(self, arguments: Sequence[str]) -> None:
        with self._log_file.open("w", encoding="utf-8") as log:
            self._run([sys.executable, "-s", *arguments], log=log, progress=Progress(), count_packages=lambda: 0)

    def _failure(self, error: PipError) -> DarkroomError:
        return DarkroomError(
            f"The packages could not be downloaded: {error.reason}.", advice=f"pip's log is {self._log_file}."
        )

    def _no_wheel(self, package: str) -> DarkroomError:
        facts, name = self._connection.facts, self._connection.remote.name
        python = ".".join(map(str, facts["version"]))
        return DarkroomError(
            f"{package} has no wheel for {name} ({facts['system']} {facts['machine']}, Python {python}), and none that "
            "fits could be built here.",
            advice=f"Build it on a computer like {name}, put it into {self._folder}, and try again.",
        )


def platform_tags(machine: str, glibc: str) -> list[str]:
    """Return the tags of wheels for a Linux machine, by its processor and the version of its glibc, as in "2.36"."""
    minor = int(glibc.split(".")[1])
    newer = [f"manylinux_2_{number}_{machine}" for number in range(minor, _OLDEST_GLIBC - 1, -1)]
    return [*newer, *(f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux"))]


def _refuse_unknown(name: str, facts: Mapping[str, Any]) -> None:
    """Raise DarkroomError for a machine whose wheels have tags that are not known here."""
    is_linux = str(facts["system"]).startswith("linux")
    if not is_linux or not re.fullmatch(r"2\.\d+", facts["glibc"]):
        kind = f"{facts['system']} {facts['machine']}{' without glibc' if is_linux else ''}"
        raise DarkroomError(
            f"The packages for {name} ({kind}) cannot be downloaded from here.",
            advice="Download them on a computer like it, and name the folder of the wheels: "
            f"remote add {name} --wheels FOLDER.",
        )


def _torch_source(
    connection: Connection, version: str, page: Callable[[str], str | None] | None
) -> tuple[torch_build.Source, Mapping[str, str]]:
    """Return where the torch build for the machine's hardware comes from, and its values for conditions.

    Raises DarkroomError if that is not known.
    """
    facts = connection.facts
    [program] = send_trees(connection, [program_tree()], cache_dir=None, progress=lambda event: None)
    hardware = printed_by(connection, _DETECT, names=("build", "gpu", "conditions"), folder=program)
    try:
        target = torch_build.Target(facts["version"][0], facts["version"][1], facts["machine"])
        gpu = torch_build.Gpu(*hardware["gpu"])
        return torch_build.source(hardware["build"], gpu, version, {}, page, target), hardware["conditions"]
    except (KeyError, TypeError) as error:
        raise DarkroomError(f"The hardware of {connection.remote.name} could not be read.") from error
    except Failure as failure:
        raise DarkroomError(f"{failure.what}.") from failure
