"""Preparing another machine for a run, sending the files that it reads, and starting it there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from modules.config.codec import encode
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.secrets_file import load_secrets
from trainer.data.datasets import cache_folder
from trainer.events import Event, PhaseChanged
from trainer.preflight.requirements import offered_packages
from trainer.remote.agent import INBOX
from trainer.remote.connection import Connection
from trainer.remote.inputs import config_there, inputs_of, paths_there, program_tree
from trainer.remote.trees import send_trees
from trainer.run_folder.elsewhere import Elsewhere

OLDEST_PYTHON = (3, 11)
_INSTALL_SECONDS = 3600
_NUM_LINES = 3
_NOTHING = ("train", "--help")  # the launcher installs before it
_CONFIG = "config.json"
# The program's own environment is a link to the one of all its versions, which is complete with the file.
_MAKE_ENVIRONMENT = """
[ -e "$1/complete" ] || { "$2" -m venv --clear "$1" && touch "$1/complete"; }
[ -e "$1/complete" ] && ln -sfn "$1" .venv
"""


@dataclass(frozen=True, slots=True)
class PreparedProgram:
    """A program on another machine: its folder there, Python's arguments, and its environment variables."""

    folder: str
    python: tuple[str, ...]
    environment: dict[str, str]


def prepare(
    connection: Connection, config: Config, *, emit: Callable[[Event], None], check: Callable[[], None]
) -> PreparedProgram:
    """Send this program to the machine, and install its packages if Darkroom makes the environment there.

    Those that choices of the config need are among them. Raises DarkroomError, ConnectionLostError, OSError.
    """
    remote, facts = connection.remote, connection.facts
    if tuple(facts["version"]) < OLDEST_PYTHON:
        version = ".".join(map(str, facts["version"]))
        raise DarkroomError(
            f"{remote.name} has Python {version}; Darkroom needs Python 3.11 or newer.",
            advice="Install one there, and name it with --python.",
        )
    emit(PhaseChanged("sending", f"Darkroom, to {remote.name}"))
    [folder] = send_trees(connection, [program_tree()], cache_dir=None, progress=emit, check=check)
    if remote.python:
        return PreparedProgram(folder, (facts["python"], "-s", "-m", "trainer"), {})
    emit(PhaseChanged("starting", f"installing packages on {remote.name}; the first time takes minutes"))
    place = f"{facts['folder']}/environment"
    _run(connection, ["sh", "-c", _MAKE_ENVIRONMENT, "sh", place, facts["python"]], folder)
    environment = {"VIRTUAL_ENV": "", "CONDA_PREFIX": "", **_offline(connection, emit, check)}
    prepared = PreparedProgram(folder, (facts["python"], "-s", "-m", "launcher"), environment)
    settings = [f"{name}={value}" for name, value in prepared.environment.items()]
    packages = [package.pip_name for package in offered_packages(config)]
    _run(connection, ["env", *settings, *prepared.python, *(["install", *packages] if packages else _NOTHING)], folder)
    return prepared


def _offline(connection: Connection, emit: Callable[[Event], None], check: Callable[[], None]) -> Mapping[str, str]:
    """Send the wheels that the machine is to install from, if any, and return the environment variables for that."""
    if not connection.remote.wheels_dir:
        return {}
    from trainer.remote.wheels import offline_environment, wheel_tree

    folder = Path(connection.remote.wheels_dir).expanduser()
    emit(PhaseChanged("sending", f"packages, to {connection.remote.name}"))
    digests = folder if os.access(folder, os.W_OK) else None
    [place] = send_trees(connection, [wheel_tree(folder)], cache_dir=digests, progress=emit, check=check)
    return offline_environment(place)


def _run(connection: Connection, arguments: list[str], folder: str) -> None:
    """Run a program there to its end. Raises DarkroomError with its last lines if it fails."""
    code, printed = connection.call("command", arguments=arguments, cwd=folder, seconds=_INSTALL_SECONDS)
    if code:
        lines = [line.strip() for line in printed.decode(errors="replace").splitlines() if line.strip()]
        raise DarkroomError(
            f"Darkroom could not be installed on {connection.remote.name}: {' '.join(lines[-_NUM_LINES:])}",
            advice="Fix it there. Without a package index there, send the packages (remote wheels NAME), or use a "
            "Python there that has all of them (--python).",
        )


def send_inputs(
    connection: Connection, config: Config, *, emit: Callable[[Event], None], check: Callable[[], None]
) -> Elsewhere:
    """Send a config and what its run reads, as a new job. Raises DarkroomError, ConnectionLostError, OSError."""
    remote, folder = connection.remote, connection.facts["folder"]
    inputs = inputs_of(config)
    emit(PhaseChanged("sending", f"the run's files to {remote.name}"))
    trees = [one.tree for one in inputs]
    places = send_trees(connection, trees, cache_dir=cache_folder(config), progress=emit, check=check)
    name = uuid4().hex[:12]
    job = f"{folder}/jobs/{name}"
    there = config_there(config, inputs, places, remote=remote, folder=folder, job=job)
    connection.call("write", json.dumps(encode(there), indent=1).encode(), name=f"jobs/{name}/{_CONFIG}")
    paths = {
        **paths_there(inputs, places),
        f"{job}/workspace": config.general.workspace_dir,
        f"{folder}/cache": config.general.cache_dir,
    }
    return Elsewhere(remote.name, name, job, str(from_root(config.output.destination)), paths, remote.price_per_hour)


def start_there(
    connection: Connection,
    prepared: PreparedProgram,
    elsewhere: Elsewhere,
    *,
    allowed_code: Collection[str] = (),
    resumed: str = "",
) -> None:
    """Start a job that was sent, or resume its run, whose folder there is `resumed`.

    Tokens are given to the process in its environment. Raises DarkroomError, ConnectionLostError.
    """
    job = elsewhere.folder
    arguments = ["resume", resumed, "--config", f"{job}/{_CONFIG}"] if resumed else ["train", f"{job}/{_CONFIG}"]
    arguments += ["--json-lines", f"--commands={job}/{INBOX}"]
    arguments += [f"--allow-code-hash={digest}" for digest in sorted(allowed_code)]
    token = load_secrets().secrets.huggingface_token
    connection.call(
        "start",
        job=elsewhere.job,
        arguments=[*prepared.python, *arguments],
        cwd=prepared.folder,
        environment={**prepared.environment, **({"HF_TOKEN": token} if token else {})},
        again=bool(resumed),
    )
