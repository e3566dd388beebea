"""export: a backup as a model that other programs load."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime

from modules.system.errors import DarkroomError
from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.launch import import_engine
from trainer.run_folder.backup import find_backup


def _export(options: argparse.Namespace) -> int:
    backup, out = find_backup(from_caller(options.run_path)), from_caller(options.out)
    if out.exists() and not options.overwrite:
        raise DarkroomError(f"{out} exists.", advice="Choose another name, or add --overwrite.")
    import_engine(beside_window=False)
    from trainer.run.export_backup import export_backup

    try:
        exported = export_backup(backup, out, now=datetime.now().astimezone())
    except OSError as error:
        raise DarkroomError(f"{out} could not be written: {error}. Existing files were not changed.") from error
    sys.stdout.write(f"{exported.path} (step {exported.step:,})\n")
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_path", metavar="RUN", help="a run's folder, one of its backups, or a workspace")
    parser.add_argument("--out", metavar="FILE", required=True, help="the model file, or folder, to write")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that exists")


EXPORT = Verb("export a backup as a model", _arguments, _export)
