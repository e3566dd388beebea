"""train, resume, fork, report: the verbs that train, or continue from a run."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Annotated, Any, Literal

import psutil

from modules.config.codec import load_file
from modules.config.schema import Config
from modules.settings.edit import replace_value
from modules.settings.field import Setting
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import Problem
from modules.system.ranks import current_rank
from trainer import commands
from trainer.cli.console import Console, JsonLines, Listener, OtherProcess, reading_commands
from trainer.cli.jobs import job_on_terminal
from trainer.cli.options import settings_verb
from trainer.cli.program import STOPPED, exit_code_of_run
from trainer.cli.recipes import read_repeat, repeat
from trainer.cli.remote import train_on
from trainer.cli.signals import at_signal
from trainer.events import Event, PhaseChanged, RunFailed, RunFinished
from trainer.jobs.config import (
    Changes,
    CodeSettings,
    ConfigSettings,
    allowed_code,
    apply_changes,
    describe,
    read_config,
    with_hashes,
)
from trainer.jobs.fit import FitSettings, fit_config, save_changed
from trainer.jobs.spec import Argument, positional
from trainer.launch import RunRequest, import_engine, module_arguments, num_processes
from trainer.run_folder.backup import find_backup

_LAUNCHER = "TORCHELASTIC_RUN_ID"
STOPPED_UNDER_LAUNCHER = 0  # torchrun treats any other code as a failure, and would start the run again


RunPath = Annotated[
    str,
    Setting("Run", "A run's folder, one of its backups, or a workspace.", path_kind="folder"),
    positional("RUN"),
]
JsonLinesOption = Annotated[
    bool,
    Setting(
        "JSON lines",
        "For programs: print events as JSON lines to standard output, read commands from standard input. When it ends, "
        "the command stops.",
    ),
]


CommandsOption = Annotated[
    str,
    Setting("Commands", "With --json-lines: read commands from the end of this file instead of standard input."),
    Argument(metavar="FILE"),
]


class RunSettings(CodeSettings):
    """The settings that all verbs of runs share."""

    overwrite: Annotated[
        bool,
        Setting(
            "Overwrite",
            "Replace what is at the destination of the result, also files of other programs; without it, the result "
            "gets a number where a file is that this run did not write.",
        ),
    ] = False
    profile: Annotated[
        bool, Setting("Profile", "Profile ten steps after the first; writes to the run's profile folder.")
    ] = False
    json_lines: JsonLinesOption = False
    commands: CommandsOption = ""


class TrainSettings(ConfigSettings):
    """The config to train, or the recipe to repeat."""

    config: Annotated[
        str,
        Setting("Config", "A config file, or the name of a preset such as '#demo'."),
        Argument(metavar="CONFIG", is_positional=True),
    ] = ""
    run: RunSettings = RunSettings()
    card: FitSettings = FitSettings()
    recipe: Annotated[
        str,
        Setting(
            "Recipe",
            "Instead of a config: repeat the run of this recipe (recipe.json in its folder) in a new folder, and "
            "report whether the result is bit-equal. Exit code 0 if it is, 3 if not.",
        ),
        Argument(metavar="FILE"),
    ] = ""

    on: Annotated[
        str,
        Setting("On", "Train on this machine over SSH (remote list) instead of here."),
        Argument(metavar="NAME"),
    ] = ""


class ResumeSettings(RunSettings):
    """The run to resume."""

    run_path: RunPath = ""
    config: Annotated[
        str, Setting("Config", "A config file instead of the run's settings."), Argument(metavar="CONFIG")
    ] = ""
    changes: Changes = ()


class ForkSettings(ResumeSettings):
    """The run to start another one from."""

    weights_only: Annotated[
        bool,
        Setting(
            "Weights only",
            "Start at step 0 from the weights of the backup, without the state of optimizer and schedule; more "
            "settings may then change.",
        ),
    ] = False


class ReportSettings(CodeSettings):
    """The run whose images are compared."""

    run_path: RunPath = ""
    json_lines: JsonLinesOption = False
    commands: CommandsOption = ""


def _train(settings: TrainSettings) -> int:
    if settings.recipe:
        return _repeat(settings)
    if not settings.config:
        raise DarkroomError(
            "There is no config to train.", advice="Give a config file, a preset such as '#demo', or --recipe FILE."
        )
    loaded = settings.load()
    report_problems(loaded.problems)
    allowed = allowed_code(loaded.config, settings.run)
    config = loaded.config
    if settings.card.fit and settings.on:
        raise DarkroomError(
            "--fit is for this computer's card: it cannot be used with --on.", advice="Leave one of them out."
        )
    if settings.card.fit:
        config = _fit_to_card(config, settings.card)
    elif settings.card.save:
        sys.stderr.write(f"{save_changed(config, settings.card)}\n")
    request = RunRequest(config, in_window=False, allowed_code=allowed, replaces=settings.run.overwrite)
    if settings.on:
        return train_on(request, settings.on, json_lines=settings.run.json_lines, commands_file=settings.run.commands)
    return run(request, settings.run)


def _repeat(settings: TrainSettings) -> int:
    """Repeat a recipe. Options that would change the run, or replace a result, are refused."""
    others = {
        "a config": settings.config,
        "--preset": settings.preset,
        "--family": settings.family,
        "--fit": settings.card.fit,
        "--save": settings.card.save,
        "--overwrite": settings.run.overwrite,
        "--on": settings.on,
    }
    if given := [name for name, value in others.items() if value]:
        raise DarkroomError(
            f"--recipe cannot be used with {', '.join(given)}.",
            advice="A recipe has all settings; change single ones with --set. No result is ever replaced.",
        )
    todo = read_repeat(settings.recipe, settings.changes)
    report_problems(todo.problems)
    allowed = allowed_code(todo.config, settings.run)
    stream = sys.stderr if settings.run.json_lines else sys.stdout
    return repeat(todo, lambda request, watch: run(request, settings.run, watch), allowed=allowed, prints=stream.write)


def _fit_to_card(config: Config, settings: FitSettings) -> Config:
    """Return the config that fits, with its table on standard error. Raises DarkroomError if nothing fits."""
    with job_on_terminal() as job:
        fit, table = fit_config(config, settings, is_run=True, progress=job.progress)
    sys.stderr.write(table)
    if not fit.fits:
        raise DarkroomError(
            "No settings that keep what the run learns fit, so nothing was started.",
            advice="Choose from what is listed above with --set, and try again.",
        )
    return fit.config


def _resume(settings: ResumeSettings) -> int:
    return run(_from_backup(settings, "resume"), settings)


def _fork(settings: ForkSettings) -> int:
    return run(_from_backup(settings, "fork_weights" if settings.weights_only else "fork"), settings)


def _from_backup(settings: ResumeSettings, kind: Literal["resume", "fork", "fork_weights"]) -> RunRequest:
    backup = find_backup(from_root(settings.run_path))
    if settings.config:
        config = read_config(settings.config, settings.changes).config
    else:
        config = apply_changes(load_file(backup.path / "config.json").config, settings.changes)
    allowed = allowed_code(config, settings)
    return RunRequest(config, kind, backup.path, in_window=False, allowed_code=allowed, replaces=settings.overwrite)


def _report_images(settings: ReportSettings) -> int:
    backup = find_backup(from_root(settings.run_path))
    config = replace_value(load_file(backup.path / "config.json").config, "general.tensorboard", False)
    allowed = allowed_code(config, settings)
    return run(RunRequest(config, "report", backup.path, in_window=False, allowed_code=allowed), settings)


def run(
    request: RunRequest, settings: RunSettings | ReportSettings, watch: Callable[[Event], None] = lambda event: None
) -> int:
    """Carry out a request in this thread and return the exit code; `watch` gets the events.

    The first signal to end stops the run cleanly, the second one immediately.
    """
    if current_rank().is_alone and _LAUNCHER not in os.environ and num_processes(request.config) > 1:
        return _run_on_several(request)
    desk = commands.CommandDesk()
    if isinstance(settings, RunSettings) and settings.profile:
        desk.put(commands.ProfileNow())
    ending: list[RunFinished | RunFailed] = []
    rank = current_rank()
    listener: Listener = OtherProcess(str(rank))
    if rank.is_main:
        listener = JsonLines() if settings.json_lines else Console()

    def emit(event: Event) -> None:
        listener.show(event)
        watch(event)
        if isinstance(event, RunFinished | RunFailed):
            ending.append(event)

    def stop() -> None:
        desk.put(commands.Stop())

    reads = settings.json_lines and rank.is_main  # the processes share one standard input
    with at_signal(stop), reading_commands(desk, stop, file=settings.commands) if reads else nullcontext():
        emit(PhaseChanged("starting", "loading the engine"))
        import_engine(in_window=False)
        from trainer.run.execute import execute_guarded

        execute_guarded(request, emit=emit, desk=desk)
    listener.close()
    code = exit_code_of_run(ending[-1])
    return STOPPED_UNDER_LAUNCHER if code == STOPPED and _LAUNCHER in os.environ else code


def _run_on_several(request: RunRequest) -> int:
    """Carry out the same command line in as many processes as the config requires, and return the launcher's code.

    The first signal to stop goes to the processes themselves, which stop together: the launcher would kill them after
    half a minute, in which a large backup is not written. The second one goes to the launcher.
    """
    # In a session of its own, so that Ctrl-C reaches it through this process alone.
    command = [sys.executable, "-s", *module_arguments(request.config)]
    command += with_hashes(sys.argv[1:], request.allowed_code)
    with (
        subprocess.Popen(command, start_new_session=True) as launcher,
        at_signal(lambda: _pass_on_stop(launcher), again=launcher.terminate),
    ):
        return launcher.wait()


def _pass_on_stop(launcher: subprocess.Popen[Any]) -> None:
    """Let the processes of a launcher stop cleanly."""
    try:
        processes = psutil.Process(launcher.pid).children()
    except psutil.Error:  # it has ended
        return
    if not processes:
        launcher.terminate()
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()


def report_problems(problems: list[Problem]) -> None:
    """Print the problems of a config file on standard error, and let warnings of libraries be logged."""
    for problem in problems:
        print(describe(problem), file=sys.stderr)  # noqa: T201 - command-line output
    logging.captureWarnings(True)


TRAIN = settings_verb("train a config", TrainSettings, _train)
RESUME = settings_verb("resume a run from its newest backup", ResumeSettings, _resume)
FORK = settings_verb("start a new run from a backup of another run, which stays as it is", ForkSettings, _fork)
REPORT = settings_verb(
    "compare the losses of a run's images, and list those that stand out", ReportSettings, _report_images
)
