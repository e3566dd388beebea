"""The job that collects a zip file for a bug report, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from modules.settings.field import Section, Setting
from modules.system.errors import DarkroomError
from modules.system.paths import from_root, log_dir
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.config import read_config
from trainer.jobs.spec import Argument, JobSpec, Overwrite, require_ending
from trainer.run_folder.bundle import collect_bundle, newest_run, write_bundle
from trainer.run_folder.event_log import EVENTS_FILE


class BundleSettings(Section):
    """The contents of the bundle, and its file."""

    config: Annotated[
        str, Setting("Config", "A config to include."), Argument(metavar="CONFIG", is_positional=True)
    ] = ""
    run_path: Annotated[
        str, Setting("Run", "A run's folder, or a workspace.", path_kind="folder"), Argument("--run", "RUN")
    ] = ""
    out: Annotated[str, Setting("Write to", "The zip file to write.", path_kind="save")] = "darkroom-bundle.zip"
    list_only: Annotated[bool, Setting("List only", "Only list what the bundle would contain."), Argument("--list")] = (
        False
    )
    overwrite: Overwrite = False


BUNDLE = JobSpec(
    "bundle",
    "Debug bundle",
    "Collect a debug bundle for a bug report: settings, versions, logs; without secrets.",
    BundleSettings,
    "trainer.jobs.bundle:bundle",
    shows="text",
)


def bundle(settings: BundleSettings, _job: Job) -> JobFinished:
    """Return the list of the files, after writing them. Raises DarkroomError if the zip file exists, and OSError."""
    config = read_config(settings.config).config if settings.config else None
    run_dir = _run_dir(from_root(settings.run_path)) if settings.run_path else None
    log_file = max(log_dir().glob("darkroom-*.log"), default=None)
    files = collect_bundle(config, run_dir=run_dir, log_file=log_file)
    text = "".join(f"{file.name:18} {len(file.text.encode()):>9,} bytes  {file.what}\n" for file in files)
    if settings.list_only:
        return JobFinished("Listed.", text=text)
    out = from_root(settings.out)
    require_ending(out, ".zip", "a zip file")
    if out.exists() and not settings.overwrite:
        raise DarkroomError(f"{out} already exists.", advice="Choose another name, or add --overwrite.")
    write_bundle(out, files)
    return JobFinished("Written.", text=f"{text}Written to {out}. It contains no tokens, images or weights.\n")


def _run_dir(path: Path) -> Path:
    """Return a run's folder: the given one, or the newest of a workspace."""
    run_dir = path if (path / EVENTS_FILE).exists() else newest_run(path)
    if run_dir is None:
        raise DarkroomError(f"{path} has no run.", advice="Give a run's folder, or a workspace with runs.")
    return run_dir
