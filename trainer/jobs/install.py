"""The job that installs packages which a choice needs, such as a captioner or an optimizer.

The launcher's own installation does it: tested versions, no change to what meets the requirements, an unfinished one is
repaired. Only packages that `pyproject.toml` names are installed, never one that a config names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from launcher import environment, install, requirements
from launcher.messages import Failure, Sentence
from launcher.progress import Progress
from modules.settings.field import Section, Setting
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from trainer.commands import StopRequested
from trainer.job import Job
from trainer.job_events import JobFinished, JobLines
from trainer.jobs.spec import Argument, JobSpec

_SPACE = "Free some space, and try again."
_ADVICE = {
    Sentence.NO_NETWORK: ("Connect to the internet, and try again.", ""),
    Sentence.PIP_FAILED: ("pip's log has the reason. Then try again.", ""),
    Sentence.STILL_MISSING: ("pip's log has the reason. Then try again.", ""),
    Sentence.BUSY: ("Wait for it, and try again.", ""),
    Sentence.DISK_FULL: (_SPACE, "space"),
    Sentence.DISK_TOO_SMALL: (_SPACE, "space"),
}
_ELSEWHERE = "Start Darkroom outside of this environment: it then installs one of its own, in which this works."


class InstallSettings(Section):
    """The packages that are installed."""

    packages: Annotated[
        tuple[str, ...],
        Setting("Packages", "The packages to install, such as onnxruntime; a choice that lacks one names it."),
        Argument(metavar="PACKAGE", is_positional=True, is_required=True, takes_several=True),
    ] = ()


INSTALL = JobSpec(
    "install",
    "Install",
    "Install packages that a captioner, an optimizer or another choice needs.",
    InstallSettings,
    "trainer.jobs.install:install_packages",
    shows="text",
    stopped="Stopped. What was not complete was removed.",
    button="Install",
)


def install_packages(settings: InstallSettings, job: Job) -> JobFinished:
    """Install packages into this Python's environment. Raises DarkroomError if that fails, StopRequested on a stop."""
    try:
        lines = _requirements_of(settings.packages)
        task = install.Job(PROGRAM_ROOT, environment.running_environment(PROGRAM_ROOT), lines, os.environ)
        progress = _JobProgress(job, task.log)
        try:
            install.ensure(task, progress)
        except StopRequested:
            install.ensure(task._replace(wanted=[]), Progress())  # removes packages that were installed in part
            raise
        finally:
            progress.follow_log()
    except Failure as failure:
        advice, remedy = _ADVICE.get(failure.sentence, (_ELSEWHERE, ""))
        raise DarkroomError(f"{failure.what}.", advice=advice, remedy=remedy) from failure
    message = f"Installed {', '.join(settings.packages)}."
    return JobFinished(message, text=f"{message}\n")


def _requirements_of(names: Sequence[str]) -> list[str]:
    """Return the lines of `pyproject.toml` for packages. Raises DarkroomError for a package that it does not name."""
    by_name = {requirements.name_of(line): line for line in reversed(requirements.optional_requirements(PROGRAM_ROOT))}
    packages = [by_name.get(requirements.normalise(name), "") for name in names]
    if missing := [name for name, line in zip(names, packages, strict=True) if not line]:
        known = ", ".join(sorted(by_name))
        raise DarkroomError(f"Darkroom does not use a package {missing[0]}.", advice=f"It uses {known}.")
    return packages


class _JobProgress(Progress):
    """Reports the installation as the progress of a job; a stop takes effect here, and ends pip."""

    def __init__(self, job: Job, log: Path) -> None:
        super().__init__()
        self._job, self._log = job, log
        self._read_bytes = 0

    def show(self, text: str, share: float = 0.0) -> None:
        """Report the progress, and the lines that pip has printed since the last report."""
        self.follow_log()
        self._job.progress(text[:1].lower() + text[1:], 0, 1, share=share)

    def print_line(self, text: str) -> None:
        """Add a line to the job's log."""
        self._job.emit(JobLines((text,)))

    def close(self) -> None:
        """Do nothing: the line is the window's."""

    def follow_log(self) -> None:
        """Report the lines of pip's log that are new; a log of an earlier installation is not read."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
        except OSError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        if lines := tuple(whole.decode(errors="replace").splitlines()):
            self._job.emit(JobLines(lines))
