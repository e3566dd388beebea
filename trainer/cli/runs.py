"""train, resume, fork, cache: the verbs that start the engine."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import subprocess
import sys
import threading
from typing import Any, Literal

import psutil

from modules.config.codec import load_file
from modules.config.method_facts import data_in_use
from modules.config.schema import Config
from modules.rewards.user_code_file import approved_hashes
from modules.system.errors import DarkroomError
from modules.system.paths import from_caller
from modules.system.problem import Problem
from modules.system.ranks import current_rank
from trainer import commands
from trainer.cli import Verb
from trainer.cli.console import Console, JsonLines, Listener, OtherProcess
from trainer.cli.fit import add_fit_arguments, fitted
from trainer.cli.options import (
    add_allow_code,
    add_config_argument,
    add_set_argument,
    allowed_code,
    changed,
    describe,
    read_config,
    with_hashes,
)
from trainer.cli.plan import plan_lines
from trainer.cli.prune import prune
from trainer.cli.signals import on_signal
from trainer.events import Event, PhaseChanged, RunFailed, RunFinished
from trainer.launch import RunRequest, import_engine, module_arguments, num_processes
from trainer.preflight import check
from trainer.run_folder.backup import find_backup

_LAUNCHER = "TORCHELASTIC_RUN_ID"
STOPPED_UNDER_LAUNCHER = 0  # torchrun takes anything else for a failure, and would start the run again


def _train(options: argparse.Namespace) -> int:
    loaded = read_config(options.config, options.changes, preset=options.preset)
    _report(loaded.problems, options)
    allowed = allowed_code(loaded.config, options)
    config = _fitted(loaded.config, options) if options.fit else loaded.config
    request = RunRequest(config, beside_window=False, allowed_code=allowed, replaces=options.overwrite)
    return _run(request, options)


def _fitted(config: Config, options: argparse.Namespace) -> Config:
    """Return the config that fits, with its table on standard error. Raises DarkroomError if nothing fits."""
    found, table = fitted(config, options, is_run=True)
    sys.stderr.write(table)
    if not found.fits:
        raise DarkroomError(
            "Nothing that keeps what the run learns fits, so nothing was started.",
            advice="Choose from what is listed above with --set, and try again.",
        )
    return found.config


def _cache(options: argparse.Namespace) -> int:
    loaded = read_config(options.config, options.changes, preset=options.preset)
    _report(loaded.problems, options)
    if options.prune:
        others = [read_config(name, []).config for name in options.keep_for]
        names = [options.config, *options.keep_for]
        return prune([loaded.config, *others], names=names, is_confirmed=options.yes)
    allowed = allowed_code(loaded.config, options)
    report = check(loaded.config, approved_code=approved_hashes() | allowed)
    if report.datasets is not None and not options.json_lines:
        is_cached, epochs = data_in_use(loaded.config).latent_cache, loaded.config.training.epochs
        for line in plan_lines(report.datasets, is_cached=is_cached, epochs=epochs, every_image=options.images):
            sys.stdout.write(f"{line}\n")
    request = RunRequest(
        loaded.config, kind="cache", datasets=report.datasets, beside_window=False, allowed_code=allowed
    )
    return _run(request, options)


def _resume(options: argparse.Namespace) -> int:
    return _run(_from_backup(options, "resume"), options)


def _fork(options: argparse.Namespace) -> int:
    return _run(_from_backup(options, "fork_weights" if options.weights_only else "fork"), options)


def _from_backup(options: argparse.Namespace, kind: Literal["resume", "fork", "fork_weights"]) -> RunRequest:
    backup = find_backup(from_caller(options.run_path))
    if options.config:
        config = read_config(options.config, options.changes).config
    else:
        config = changed(load_file(backup.path / "config.json").config, options.changes)
    allowed = allowed_code(config, options)
    return RunRequest(config, kind, backup.path, beside_window=False, allowed_code=allowed, replaces=options.overwrite)


def _run(request: RunRequest, options: argparse.Namespace) -> int:
    """Run in this thread; the first signal to end stops cleanly, the second immediately."""
    if current_rank().is_alone and _LAUNCHER not in os.environ and num_processes(request.config) > 1:
        return _run_on_several(request)
    desk = commands.CommandDesk()
    if options.profile:
        desk.put(commands.ProfileNow())
    ending: list[Event] = []
    rank = current_rank()
    listener: Listener = OtherProcess(str(rank))
    if rank.is_main:
        listener = JsonLines() if options.json_lines else Console()

    def emit(event: Event) -> None:
        listener.show(event)
        if isinstance(event, RunFinished | RunFailed):
            ending.append(event)

    if options.json_lines and rank.is_main:  # the processes share one standard input
        threading.Thread(target=_read_commands, args=(desk,), name="darkroom-commands", daemon=True).start()
    on_signal(lambda: desk.put(commands.Stop()))
    emit(PhaseChanged("starting", "loading the engine"))
    import_engine(beside_window=False)
    from trainer.run.execute import execute_guarded

    execute_guarded(request, emit=emit, desk=desk)
    listener.close()
    match ending[-1]:
        case RunFinished(outcome="stopped"):
            return STOPPED_UNDER_LAUNCHER if _LAUNCHER in os.environ else 130
        case RunFinished():
            return 0
        case _:
            return 1


def _run_on_several(request: RunRequest) -> int:
    """Carry out the same command line in as many processes as the config requires, and return the launcher's code.

    The first signal to stop goes to the processes themselves, which stop together: the launcher would kill them after
    half a minute, in which a large backup is not written. The second one goes to the launcher.
    """
    # In a session of its own, so that Ctrl-C reaches it through this process alone.
    with subprocess.Popen(
        [sys.executable, "-s", *module_arguments(request.config), *with_hashes(sys.argv[1:], request.allowed_code)],
        start_new_session=True,
    ) as launcher:
        on_signal(lambda: _pass_on_stop(launcher), again=launcher.terminate)
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
        with contextlib.suppress(psutil.Error):
            process.terminate()


def _read_commands(desk: commands.CommandDesk) -> None:
    """Read commands from the parent process; when it has ended, stop cleanly."""
    for line in sys.stdin:
        command = commands.from_line(line)
        if command is not None:
            desk.put(command)
    desk.put(commands.Stop())


def _report(problems: list[Problem], options: argparse.Namespace) -> None:
    for problem in problems:
        print(describe(problem), file=sys.stderr)  # noqa: T201 - command-line output
    logging.captureWarnings(True)


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_config_argument(parser)
    _add_run_options(parser)


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    _arguments(parser)
    add_fit_arguments(parser)


def _cache_arguments(parser: argparse.ArgumentParser) -> None:
    _arguments(parser)
    parser.add_argument("--images", action="store_true", help="list bucket, scale and crop of every image")
    parser.add_argument("--prune", action="store_true", help="list the entries that the config does not use; remove")
    parser.add_argument("--yes", action="store_true", help="with --prune: remove them without asking")
    parser.add_argument(
        "--keep-for", nargs="+", default=[], metavar="CONFIG", help="with --prune: keep those of other configs, too"
    )


def _resume_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_path", metavar="RUN", help="a run's folder, one of its backups, or a workspace")
    parser.add_argument("--config", metavar="CONFIG", default="", help="a config file instead of the run's settings")
    add_set_argument(parser)
    _add_run_options(parser)


def _fork_arguments(parser: argparse.ArgumentParser) -> None:
    _resume_arguments(parser)
    parser.add_argument(
        "--weights-only",
        action="store_true",
        help="start at step 0 from the weights of the backup, without the state of optimizer and schedule; more "
        "settings may then change",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add_allow_code(parser)
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace what is at the destination of the result, also files of other programs; without it, the result "
        "gets a number where a file is that this run did not write",
    )
    parser.add_argument(
        "--profile", action="store_true", help="profile ten steps after the first; writes to the run's profile folder"
    )
    parser.add_argument(
        "--json-lines",
        action="store_true",
        help="for programs: print events as JSON lines to standard output, read commands from standard input",
    )


TRAIN = Verb("train a config", _train_arguments, _train)
RESUME = Verb("resume a run from its newest backup", _resume_arguments, _resume)
FORK = Verb("start a new run from a backup of another run, which stays as it is", _fork_arguments, _fork)
CACHE = Verb("fill the caches of a config and stop", _cache_arguments, _cache)
