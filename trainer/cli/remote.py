"""remote: machines that runs are trained on over SSH, and the runs there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting
from modules.system.errors import DarkroomError
from modules.system.file_errors import describe_file_error
from modules.system.paths import from_root, wheels_dir
from modules.system.secrets_file import load_secrets
from trainer import commands
from trainer.cli.console import Console, JsonLines, Listener, reading_commands
from trainer.cli.options import settings_verb
from trainer.cli.program import FAILED, OK, exit_code_of, exit_code_of_run, verb_group
from trainer.cli.renting import RENTING, MachineName
from trainer.cli.signals import at_signal
from trainer.commands import Stop, StopRequested
from trainer.events import Event, RunFailed, RunFinished, RunStarted
from trainer.jobs.spec import Argument, positional
from trainer.launch import RunRequest
from trainer.remote.checking import findings_of
from trainer.remote.connection import Connection, ConnectionLostError, unreachable
from trainer.remote.follower import note_of
from trainer.remote.following import fetch_now, follow, resume_run_there, train_there
from trainer.remote.host_keys import accept, fingerprints, is_known, offered_keys
from trainer.remote.line import Line
from trainer.remote.onetrainer import import_machine, keep
from trainer.remote.record import DEFAULT_FOLDER, Remote, RemotesFile
from trainer.run_folder.elsewhere import Elsewhere

RunFolder = Annotated[
    str, Setting("Run", "The folder of the run on this computer.", path_kind="folder"), positional("RUN")
]


class MachineSettings(Section):
    """A machine in the list."""

    name: MachineName = ""


class AddSettings(MachineSettings):
    """The record of a machine."""

    host: Annotated[
        str, Setting("Host", "Its name, its address, or an alias in OpenSSH's config."), Argument(is_required=True)
    ] = ""
    port: Annotated[
        int,
        Setting("Port", "The port of its SSH server.", empty_means="of OpenSSH's config"),
        Ge(0),
        Le(65535),
    ] = 0
    user: Annotated[str, Setting("User", "The user to log in as; by default the one in OpenSSH's config.")] = ""
    key: Annotated[
        str,
        Setting("Key", "The file of a private key; by default the SSH agent's and the usual ones.", path_kind="file"),
    ] = ""
    folder: Annotated[str, Setting("Folder", "Where everything is kept there.")] = DEFAULT_FOLDER
    python: Annotated[
        str, Setting("Python", "A Python there that has all packages; without one an environment is made there.")
    ] = ""
    devices: Annotated[int, Ge(1), Setting("Devices", "How many devices a run uses there.")] = 1
    price: Annotated[float, Ge(0), Setting("Price", "What it costs in an hour, in any currency.")] = 0.0
    wheels: Annotated[
        str,
        Setting(
            "Wheels",
            "For a machine without a package index: a folder here with the wheels of all packages, which are sent.",
            path_kind="folder",
        ),
    ] = ""
    hub_cache: Annotated[
        str,
        Setting("Hub cache", "Where models of Hugging Face are kept there; by default in the user's own cache."),
        Argument(metavar="FOLDER"),
    ] = ""
    backups: Annotated[bool, Setting("Backups", "Fetch each backup of a run when it has been written.")] = False
    after: Annotated[
        str,
        Setting("After", "A command to run there after the last run, such as one that ends a rented machine."),
        Argument(metavar="COMMAND"),
    ] = ""


class ImportSettings(MachineSettings):
    """Where the record of a machine comes from."""

    file: Annotated[
        str, Setting("File", "A config of OneTrainer, or its secrets.json.", path_kind="file"), positional("FILE")
    ] = ""


class CheckSettings(MachineSettings):
    """The check of a machine."""

    accept: Annotated[
        str,
        Setting("Accept", "Accept the host key with this fingerprint, SHA256:..., without asking."),
        Argument(metavar="FINGERPRINT"),
    ] = ""
    new_key: Annotated[
        bool, Setting("New key", "Show the host key again, also if another one was accepted before.")
    ] = False


class WheelsSettings(MachineSettings):
    """The packages of a machine to download."""

    folder: Annotated[
        str, Setting("Folder", "Where they are kept; without it, in Darkroom's cache.", path_kind="folder")
    ] = ""


class FollowSettings(Section):
    """A run on another machine."""

    run_path: RunFolder = ""
    json_lines: Annotated[
        bool, Setting("JSON lines", "For programs: print events as JSON lines, read commands from standard input.")
    ] = False
    commands: Annotated[
        str,
        Setting("Commands", "With --json-lines: read commands from the end of this file."),
        Argument(metavar="FILE"),
    ] = ""


class FetchSettings(Section):
    """The files of a run to fetch."""

    run_path: RunFolder = ""
    backups: Annotated[bool, Setting("Backups", "Fetch its backups, too.")] = False


class StopSettings(Section):
    """The run to stop."""

    run_path: RunFolder = ""


def _add(settings: AddSettings) -> int:
    remote = Remote(
        settings.name, settings.host, settings.port, settings.user, settings.key, settings.folder, settings.python,
        settings.devices, settings.price, settings.backups, settings.after, wheels_dir=settings.wheels,
        hub_cache_dir=settings.hub_cache,
    )  # fmt: skip
    RemotesFile().add(remote)
    sys.stdout.write(f"{remote.name} is added. Check it with: remote check {remote.name}\n")
    if remote.command_after:
        sys.stdout.write(f"When its last run has finished, {remote.name} runs: {remote.command_after}\n")
    return OK


def _import(settings: ImportSettings) -> int:
    file = from_root(settings.file)
    imported = import_machine(settings.name, file, load_secrets().secrets.cloud)
    has_stored_key, remote = keep(imported, RemotesFile()), imported.remote
    sys.stdout.write(f"{remote.name} is added: {remote.address}, {remote.folder}.\n")
    for note in imported.notes:
        sys.stdout.write(f"Without a counterpart here: {note}\n")
    if has_stored_key:
        sys.stdout.write(f"Its API key is stored; {file.name} still contains it.\n")
    return OK


def _list(_settings: Section) -> int:
    known = RemotesFile().read()
    if not known:
        sys.stdout.write("There are no machines. Add one with: remote add NAME --host HOST\n")
    for one in known:
        port = f":{one.port}" if one.port else ""
        price = f"  {one.price_per_hour:g} per hour" if one.price_per_hour else ""
        sys.stdout.write(f"{one.name:16} {one.address}{port}  {one.folder}{price}\n")
    return OK


def _remove(settings: MachineSettings) -> int:
    pod = RemotesFile().find(settings.name).pod
    RemotesFile().remove(settings.name)
    sys.stdout.write(f"{settings.name} is removed here. Its files stay on the machine.\n")
    if pod:
        sys.stdout.write(f"It stays rented and keeps costing: stop or delete it on its provider's page, as {pod}.\n")
    return OK


def _check(settings: CheckSettings) -> int:
    remote = RemotesFile().find(settings.name)
    if (settings.new_key or not is_known(remote)) and not _accepts(remote, settings.accept):
        sys.stdout.write("The key was not accepted, so nothing was sent.\n")
        return FAILED
    with _connect(remote) as connection:
        findings = findings_of(connection)
    for finding in findings:
        sys.stdout.write(f"{'ok' if finding.is_good else '!':3} {finding.name:11} {finding.text}\n")
    return OK if all(finding.is_good for finding in findings if finding.name != "Cards") else FAILED


def _wheels(settings: WheelsSettings) -> int:
    from trainer.remote.wheels import download_wheels

    remote = RemotesFile().find(settings.name)
    folder = from_root(settings.folder) if settings.folder else wheels_dir(remote.name)
    with _connect(remote) as connection:
        downloaded = download_wheels(connection, folder)
    RemotesFile().add(replace(RemotesFile().current(remote), wheels_dir=str(folder)))
    sys.stdout.write(f"{downloaded.num_wheels} wheels are in {folder}; {remote.name} installs from them.\n")
    if downloaded.left_out:
        names = " and ".join(downloaded.left_out)
        sys.stdout.write(f"Without {names}, which could not be downloaded: choices that need them do not work there.\n")
    if remote.python:
        sys.stdout.write(f"They are not used while {remote.name} has a Python of its own ({remote.python}).\n")
    return OK


def _accepts(remote: Remote, accepted: str) -> bool:
    """Show the host key of a machine, and return whether the user accepts it."""
    try:
        lines = offered_keys(remote)
    except ConnectionLostError as error:
        raise unreachable(remote, error) from error
    shown = fingerprints(lines)
    sys.stdout.write(f"{remote.host} has this host key:\n" + "".join(f"  {one}\n" for one in shown))
    is_accepted = any(accepted in one.split() for one in shown) if accepted else False
    if not accepted and sys.stdin.isatty():
        sys.stdout.write("Compare it with the one that the machine's owner gives you.\n")
        is_accepted = input("Accept it? [y/N] ").strip().lower() in ("y", "yes")
    if is_accepted:
        accept(lines)
    return is_accepted


def _connect(remote: Remote) -> Connection:
    try:
        return Connection(remote)
    except ConnectionLostError as error:
        raise unreachable(remote, error) from error


def _run_at(path: str) -> tuple[Path, Elsewhere, Remote]:
    run_dir = from_root(path)
    elsewhere = note_of(run_dir)
    return run_dir, elsewhere, RemotesFile().find(elsewhere.remote)


def _attach(settings: FollowSettings) -> int:
    run_dir, _, remote = _run_at(settings.run_path)
    return _follow(lambda line: follow(remote, run_dir, line), remote, settings)


def _resume(settings: FollowSettings) -> int:
    run_dir, _, remote = _run_at(settings.run_path)
    return _follow(lambda line: resume_run_there(remote, run_dir, line), remote, settings)


def _fetch(settings: FetchSettings) -> int:
    run_dir, _, remote = _run_at(settings.run_path)
    with _connect(remote) as connection:
        result = fetch_now(connection, run_dir, ("save", "backup") if settings.backups else ("save",))
    sys.stdout.write(f"{run_dir} is up to date.\n" + (f"result: {result}\n" if result is not None else ""))
    return OK


def _stop(settings: StopSettings) -> int:
    run_dir, elsewhere, remote = _run_at(settings.run_path)
    with _connect(remote) as connection:
        if elsewhere.job not in connection.call("running")[0]:
            raise DarkroomError(
                f"The run does not train on {remote.name} any more.",
                advice=f"Fetch it: remote fetch {shlex.quote(str(run_dir))}",
            )
        connection.call("send", f"{commands.to_line(Stop())}\n".encode(), job=elsewhere.job)
    place = shlex.quote(str(run_dir))
    sys.stdout.write(f"The run stops on {remote.name} after a backup. Follow it with: remote attach {place}\n")
    return OK


def train_on(request: RunRequest, name: str, *, json_lines: bool, commands_file: str) -> int:
    """Train on another machine, as the verb train does here, and return the exit code."""
    remote = RemotesFile().find(name)
    settings = FollowSettings(json_lines=json_lines, commands=commands_file)
    return _follow(lambda line: train_there(remote, request, line), remote, settings)


def _follow(work: Callable[[Line], None], remote: Remote, settings: FollowSettings) -> int:
    """Do work that follows a run, and return the exit code. A signal to end only ends this program."""
    listener: Listener = JsonLines() if settings.json_lines else Console()
    ending: list[RunFinished | RunFailed] = []
    place = settings.run_path or "RUN"

    def emit(event: Event) -> None:
        nonlocal place
        listener.show(event)
        if isinstance(event, RunStarted):
            place = event.run_dir
        if isinstance(event, RunFinished | RunFailed):
            ending.append(event)

    line = Line(emit)
    try:
        with (
            at_signal(line.leave),
            reading_commands(line.commands, line.leave, file=settings.commands)
            if settings.json_lines
            else nullcontext(),
        ):
            work(line)
    except StopRequested:
        emit(RunFinished("stopped", 0, "Stopped before the run was started."))
    except DarkroomError as error:
        emit(RunFailed(error.message, error.advice))
        return exit_code_of(error)
    except OSError as error:
        message, advice = describe_file_error(error)
        emit(RunFailed(message, f"{advice} A run that has begun continues on {remote.name}: follow it again then."))
    finally:
        listener.close()
    if not ending:
        sys.stderr.write(f"The run continues on {remote.name}. Follow it with: remote attach {shlex.quote(place)}\n")
        return OK
    return exit_code_of_run(ending[-1])


REMOTE = verb_group(
    "train on other machines over SSH: remote add, check, wheels, list, remove, import; attach, fetch, stop, resume;"
    " offers, rent, start, end",
    {
        "add": settings_verb("add a machine, or change its record", AddSettings, _add),
        "import": settings_verb("add the machine of OneTrainer's cloud settings", ImportSettings, _import),
        "check": settings_verb("reach a machine, and list its disk, cards and Python", CheckSettings, _check),
        "wheels": settings_verb("download the packages for a machine without a package index", WheelsSettings, _wheels),
        "list": settings_verb("list the machines", Section, _list),
        "remove": settings_verb("remove a machine from the list", MachineSettings, _remove),
        "attach": settings_verb("follow a run on another machine", FollowSettings, _attach),
        "fetch": settings_verb("fetch the files of a run on another machine", FetchSettings, _fetch),
        "stop": settings_verb("stop a run on another machine", StopSettings, _stop),
        "resume": settings_verb("resume a run on the machine where it is", FollowSettings, _resume),
        **RENTING,
    },
)
