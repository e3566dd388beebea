"""The job that writes a backup as a model that other programs load."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from modules.config.codec import load_file
from modules.settings.edit import replace_value
from modules.settings.field import Section, Setting
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_root
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.spec import Argument, JobSpec, Overwrite, positional
from trainer.launch import import_engine
from trainer.preflight.places import unusable_output
from trainer.run_folder.backup import find_backup
from trainer.timing import in_local_zone


class ExportSettings(Section):
    """The backup and the file of its model."""

    run_path: Annotated[
        str,
        Setting("Run", "A run's folder, one of its backups, or a workspace.", path_kind="folder"),
        positional("RUN"),
    ] = ""
    out: Annotated[
        str,
        Setting("Write to", "The model file, or folder, to write.", path_kind="save"),
        Argument(metavar="FILE", is_required=True),
    ] = ""
    overwrite: Overwrite = False


EXPORT = JobSpec(
    "export",
    "Export",
    "Export a backup as a model that other programs load.",
    ExportSettings,
    "trainer.jobs.export:export",
)


def export(settings: ExportSettings, job: Job) -> JobFinished:
    """Write the model of a backup. Raises DarkroomError if the destination exists or is not valid."""
    backup, out = find_backup(from_root(settings.run_path)), from_root(settings.out)
    config = replace_value(load_file(backup.path / "config.json").config, "output.destination", str(out))
    if (problem := unusable_output(config, tries_writing=True)) is not None:
        raise DarkroomError(problem.message, advice=problem.advice, remedy=problem.remedy)
    if out.exists() and not settings.overwrite:
        raise DarkroomError(f"{out} exists.", advice="Choose another name, or add --overwrite.")
    job.progress("loading the program", 0, 1)
    import_engine(in_window=False)
    export_backup = load_factory("trainer.run.export_backup:export_backup")
    now = in_local_zone(datetime.now())
    exported = export_backup(backup, out, now=now, report=lambda what: job.progress(what, 0, 1))
    notes = (f"Step {exported.step:,} of the run.",)
    return JobFinished(f"Exported step {exported.step:,}.", (str(exported.path),), notes)
