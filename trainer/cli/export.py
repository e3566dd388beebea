"""export: a backup as a model that other programs load."""

from __future__ import annotations

import argparse
from datetime import datetime

from modules.system.errors import DarkroomError
from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.cli.jobs import add_job_arguments, run_job
from trainer.job_events import JobFinished
from trainer.launch import import_engine
from trainer.run_folder.backup import find_backup
from trainer.tools.job import Job


def _export(options: argparse.Namespace) -> int:
    def work(job: Job) -> JobFinished:
        backup, out = find_backup(from_caller(options.run_path)), from_caller(options.out)
        if out.exists() and not options.overwrite:
            raise DarkroomError(f"{out} exists.", advice="Choose another name, or add --overwrite.")
        job.progress("loading the program", 0, 1)
        import_engine(beside_window=False)
        from trainer.run.export_backup import export_backup

        exported = export_backup(
            backup, out, now=datetime.now().astimezone(), report=lambda what: job.progress(what, 0, 1)
        )
        return JobFinished(
            f"Exported step {exported.step:,}.", (str(exported.path),), (f"Step {exported.step:,} of the run.",)
        )

    return run_job(options, work)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_path", metavar="RUN", help="a run's folder, one of its backups, or a workspace")
    parser.add_argument("--out", metavar="FILE", required=True, help="the model file, or folder, to write")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that exists")
    add_job_arguments(parser)


EXPORT = Verb("export a backup as a model", _arguments, _export)
