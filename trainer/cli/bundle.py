"""bundle: a zip file for a bug report, without secrets."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from modules.system.errors import DarkroomError
from modules.system.paths import from_caller, log_dir
from trainer.cli import Verb
from trainer.cli.options import read_config
from trainer.run_folder.bundle import collect_bundle, newest_run, write_bundle
from trainer.run_folder.event_log import EVENTS_FILE


def _bundle(options: argparse.Namespace) -> int:
    config = read_config(options.config, []).config if options.config else None
    run_dir = _run_dir(from_caller(options.run_path)) if options.run_path else None
    log_file = max(log_dir().glob("darkroom-*.log"), default=None)
    files = collect_bundle(config, run_dir=run_dir, log_file=log_file)
    for file in files:
        sys.stdout.write(f"{file.name:18} {len(file.text.encode()):>9,} bytes  {file.what}\n")
    if options.list:
        return 0
    destination = from_caller(options.output)
    if destination.exists() and not options.replace:
        raise DarkroomError(f"{destination} already exists.", advice="Choose another name, or add --replace.")
    try:
        write_bundle(destination, files)
    except OSError as error:
        message = f"The bundle could not be written to {destination}: {error.strerror or error}."
        raise DarkroomError(message, advice="Choose another folder with --output.") from error
    sys.stdout.write(f"Written to {destination}. It contains no tokens, images or weights.\n")
    return 0


def _run_dir(path: Path) -> Path:
    """Return a run's folder: the given one, or the newest of a workspace."""
    found = path if (path / EVENTS_FILE).exists() else newest_run(path)
    if found is None:
        raise DarkroomError(f"{path} has no run.", advice="Give a run's folder, or a workspace with runs.")
    return found


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", default="", metavar="CONFIG", help="a config to include")
    parser.add_argument("--run", dest="run_path", default="", metavar="RUN", help="a run's folder, or a workspace")
    parser.add_argument("--output", default="darkroom-bundle.zip", metavar="FILE", help="the zip file to write")
    parser.add_argument("--list", action="store_true", help="only list what the bundle would contain")
    parser.add_argument("--replace", action="store_true", help="replace a file that exists")


BUNDLE = Verb("collect a debug bundle for a bug report, without secrets", _arguments, _bundle)
