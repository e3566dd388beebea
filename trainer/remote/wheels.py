"""Packages for a machine without a package index: downloaded here as wheels for it, sent, and installed from there.

pip evaluates the conditions of requirements for the computer it runs on, so this has to be one like the machine: Linux,
with the same processor.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from launcher import requirements, torch_build
from launcher.messages import Failure
from launcher.pip_run import PipError, run_pip
from launcher.progress import Progress
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from trainer.remote.connection import Connection
from trainer.remote.inputs import program_tree
from trainer.remote.trees import Tree, send_trees, stated

_LOG = "pip.log"
_WITHOUT_WHEEL = re.compile(r"ERROR: (?:No matching distribution found for|Cannot install) ([\w.-]+)")
_OLDEST_GLIBC = 5
_SECONDS = 120
_DETECT = (
    "import json; from launcher import torch_build; build, gpu = torch_build.detect(); print(json.dumps([build, *gpu]))"
)


def wheel_tree(folder: Path) -> Tree:
    """Return the wheels in a folder. Raises DarkroomError if there are none."""
    files = tuple(f for path in sorted(folder.glob("*.whl")) for f in stated(path, path.name))
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
) -> int:
    """Download the wheels of all packages of a run on a machine, and return how many are in the folder then.

    What is there already is not downloaded again. A package without a wheel is built here. `run` is pip, and `page`
    downloads a page. Raises DarkroomError, ConnectionLostError, OSError.
    """
    facts = connection.facts
    _refuse_unlike(connection.remote.name, facts)
    folder.mkdir(parents=True, exist_ok=True)
    pins = requirements.tested_versions(PROGRAM_ROOT)
    torch = _torch_source(connection, pins["torch"], page)
    index = ["--extra-index-url", torch.index_url] if torch.index_url else []
    constraints = ["--constraint", str(PROGRAM_ROOT / "constraints.txt")]
    python = ["--python-version", ".".join(map(str, facts["version"])), "--only-binary=:all:"]
    tags = [f"--platform={tag}" for tag in platform_tags(facts["machine"], facts["glibc"])]
    wanted = [torch.requirement, *requirements.wanted(PROGRAM_ROOT, ())]
    download = ["download", "--dest", str(folder), "--find-links", str(folder), *python, *tags, *index, *constraints]
    log_file, built = folder / _LOG, set[str]()

    def pip(arguments: list[str]) -> None:
        options = ["--no-input", "--no-color", "--disable-pip-version-check"]
        command = [sys.executable, "-s", "-m", "pip", arguments[0], *options, *arguments[1:]]
        with log_file.open("w", encoding="utf-8") as log:
            run(command, log=log, progress=Progress(), count_packages=lambda: 0)

    while True:
        try:
            pip([*download, *wanted])
            return len(wheel_tree(folder).files)
        except PipError as error:
            found = _WITHOUT_WHEEL.search(log_file.read_text(encoding="utf-8"))
            if error.cause not in ("", "conflict") or found is None or found[1] in built:
                raise _failed(error, folder) from error
            built.add(found[1])
        try:
            pip(["wheel", "--no-deps", "--wheel-dir", str(folder), *constraints, found[1]])
        except PipError as error:
            raise _failed(error, folder) from error


def platform_tags(machine: str, glibc: str) -> list[str]:
    """Return the tags of wheels for a Linux machine, by its processor and the version of its glibc, as in "2.36"."""
    minor = int(glibc.split(".")[1])
    newer = [f"manylinux_2_{number}_{machine}" for number in range(minor, _OLDEST_GLIBC - 1, -1)]
    return [*newer, *(f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux"))]


def _refuse_unlike(name: str, facts: Mapping[str, Any]) -> None:
    """Raise DarkroomError unless this computer is like the machine."""
    here = f"{sys.platform} {platform.machine()}"
    there = f"{facts['system']} {facts['machine']}"
    if here != there or not sys.platform.startswith("linux") or not re.fullmatch(r"2\.\d+", facts["glibc"]):
        raise DarkroomError(
            f"The packages for {name} ({there}) cannot be downloaded on this computer ({here}).",
            advice="Download them on a Linux computer with the same processor, and name the folder of the wheels: "
            f"remote add {name} --wheels FOLDER.",
        )


def _torch_source(connection: Connection, version: str, page: Callable[[str], str | None] | None) -> torch_build.Source:
    """Return where the torch build for the machine's hardware comes from. Raises DarkroomError if that is not known."""
    facts = connection.facts
    [program] = send_trees(connection, [program_tree()], cache_dir=None, progress=lambda event: None)
    code, printed = connection.call(
        "command", arguments=[facts["python"], "-s", "-c", _DETECT], cwd=program, seconds=_SECONDS
    )
    try:
        build, *gpu = json.loads(printed)
        target = torch_build.Target(facts["version"][0], facts["version"][1], facts["machine"])
        return torch_build.source(build, torch_build.Gpu(*gpu), version, {}, page, target)
    except (ValueError, TypeError) as error:
        raise DarkroomError(
            f"The hardware of {connection.remote.name} could not be read (exit code {code})."
        ) from error
    except Failure as failure:
        raise DarkroomError(f"{failure.what}.") from failure


def _failed(error: PipError, folder: Path) -> DarkroomError:
    return DarkroomError(
        f"The packages could not be downloaded: {error.reason}.", advice=f"pip's log is {folder / _LOG}."
    )
