"""Shared by captions and masks: the loop over the images of a folder, the model, and copies of replaced files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from modules.annotators.registry import CaptionerSpec, MaskerSpec, find_place
from modules.data.archives import archive_of
from modules.data.images import BrokenImageError
from modules.data.listing import list_images
from modules.settings.field import Setting
from modules.system.atomic import copy_file
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.file_errors import describe_file_error, is_disk_full, plain_reason
from modules.system.leftovers import sweep
from modules.system.paths import replaced_files_dir
from modules.system.problem import count
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from trainer.commands import StopRequested
from trainer.job import Job
from trainer.job_events import ImageAnnotated, JobFinished, JobProgress, JobStopped
from trainer.jobs.spec import positional

Folder = Annotated[str, Setting("Folder", "A folder of images.", path_kind="folder"), positional("FOLDER")]
Subfolders = Annotated[bool, Setting("Include subfolders", "Also the images in subfolders.")]
Device = Annotated[str, Setting("Device", "auto, cpu, cuda, cuda:1, mps.")]
Download = Annotated[bool, Setting("Download", "Download the model's files if they are missing.")]
_FAILED = 1


class Originals:
    """Copies files of a folder into a folder of this run, which is made with the first copy."""

    def __init__(self, folder: Path, keep_in: Path | None = None) -> None:
        self._folder = folder
        self._keep_in = (keep_in or replaced_files_dir()) / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
        self.place: Path | None = None
        """The folder with the copies; None as long as there are none."""

    def keep(self, file: Path) -> None:
        """Copy a file, if it exists. Raises OSError if it cannot be copied."""
        if not file.is_file():
            return
        if self.place is None:
            sweep(self._keep_in.parent, is_recursive=True)
        inside = file.relative_to(self._folder) if file.is_relative_to(self._folder) else Path(file.name)
        copy_file(file, self._keep_in / inside)
        self.place = self._keep_in


@dataclass(frozen=True, slots=True)
class Annotation:
    """The result for an image: whether a file was written, and the text in it."""

    has_written: bool
    text: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """The work on the images of a folder, which writes a `noun` for each: "caption" or "mask".

    `why_skipped(image)` returns None for an image to work on, "" for one that stays as it is, or the reason why it
    cannot be done. `do(image)` works on it, and raises OSError if that fails.
    """

    noun: str
    folder: Path
    include_subfolders: bool
    why_skipped: Callable[[Path], str | None]
    do: Callable[[Path], Annotation]


@dataclass(frozen=True, slots=True)
class Summary:
    """The outcome of the work. `noun` is the work's, `kept_in` the folder with copies of replaced files, if any."""

    outcome: Literal["finished", "stopped"]
    noun: str
    num_written: int
    num_left: int
    num_failed: int
    kept_in: str = ""

    @property
    def message(self) -> str:
        """The outcome as sentences."""
        parts = [f"{count(self.num_written, self.noun)} written"]
        if self.num_left:
            parts.append(f"{count(self.num_left, 'image')} left as they are")
        if self.num_failed:
            parts.append(f"{count(self.num_failed, 'image')} could not be done")
        stopped = "Stopped. " if self.outcome == "stopped" else ""
        kept = f" The files before are kept in {self.kept_in}." if self.kept_in else ""
        return f"{stopped}{', '.join(parts)}.{kept}"


def images_of(folder: Path, *, include_subfolders: bool) -> tuple[Path, ...]:
    """Return the image files of a folder, without those in archives. Raises DarkroomError without any, and OSError."""
    if not folder.is_dir():
        raise DarkroomError(f"There is no folder {folder}.", advice="Choose a folder of images.")
    listed = list_images(folder, include_subfolders=include_subfolders).images
    images = tuple(image for image in listed if archive_of(image) is None)
    if not images:
        raise DarkroomError(
            f"The folder {folder} contains no image files.", advice="Choose another folder, or include its subfolders."
        )
    return images


def carry_out(work: Work, job: Job, originals: Originals, *, clock: Callable[[], float] = time.monotonic) -> Summary:
    """Work on all images, report each, and return the summary.

    An image that cannot be read or written is reported, and the next one follows. Stops before the next image. Raises
    DarkroomError where the model cannot be used, or the disk is full.
    """
    images = images_of(work.folder, include_subfolders=work.include_subfolders)
    num_written = num_left = num_failed = num_worked = 0
    outcome: Literal["finished", "stopped"] = "finished"
    began: float | None = None
    for number, image in enumerate(images, 1):
        if job.desk.is_stop_requested:
            outcome = "stopped"
            break
        done, problem = Annotation(has_written=False), work.why_skipped(image)
        if problem is None:
            try:
                done, problem = work.do(image), ""
            except StopRequested:
                outcome = "stopped"
                break
            except OSError as error:
                if is_disk_full(error):
                    raise _full(work, error, num_written) from error
                problem = error.reason if isinstance(error, BrokenImageError) else plain_reason(error, names_file=True)
            num_worked += 1
            began = clock() if began is None else began  # after the first image, which waits for the model
        num_written += done.has_written
        num_failed += bool(problem)
        num_left += not done.has_written and not problem
        left = (
            (clock() - began) / (num_worked - 1) * (len(images) - number)
            if began is not None and num_worked > 1
            else None
        )
        job.emit(ImageAnnotated(str(image), done.has_written, done.text, problem))
        job.emit(JobProgress(f"{work.noun}s", number, len(images), left))
    return Summary(outcome, work.noun, num_written, num_left, num_failed, str(originals.place or ""))


def _full(work: Work, error: OSError, num_written: int) -> DarkroomError:
    message, advice = describe_file_error(error)
    return DarkroomError(f"{message} {count(num_written, work.noun)} written before.", advice=advice, remedy="space")


class ModelChoice(Protocol):
    """The device that a model computes on, and whether its files may be downloaded."""

    @property
    def device(self) -> str: ...

    @property
    def download(self) -> bool: ...


def annotate(
    spec: CaptionerSpec | MaskerSpec,
    settings: ModelChoice,
    job: Job,
    work_of: Callable[[Callable[[], Any], Originals], Work],
    *,
    folder: Path,
) -> JobFinished | JobStopped:
    """Work on all images of a folder; captions or masks are written to `folder`.

    `work_of(load, originals)` returns the work; `load()` returns the captioner or masker. Raises DarkroomError if the
    model cannot be used.
    """
    originals = Originals(folder)
    load = partial(
        load_annotator, spec, settings, device=settings.device, may_download=settings.download, job=job
    )  # fmt: skip
    summary = carry_out(work_of(load, originals), job, originals)
    if summary.outcome == "stopped":
        return JobStopped(summary.message)
    return JobFinished(summary.message, code=_FAILED if summary.num_failed else 0)


def load_annotator(
    spec: CaptionerSpec | MaskerSpec,
    settings: object,
    *,
    device: str,
    may_download: bool,
    job: Job,
) -> Any:
    """Return the captioner or masker of a record, loaded.

    Raises DarkroomError where a package or a file is missing and may not be downloaded, and StopRequested where the
    user stops the download.
    """
    for package in spec.packages:
        if not package.is_installed:
            raise DarkroomError(
                f"{spec.label} needs the package {package.name}, which is not installed.",
                advice=f"{package.install}, or choose another model.",
            )
    place = None if spec.files is None else _place(spec, may_download, job)
    job.progress(f"loading {spec.label}", 0, 1)
    return load_factory(spec.factory)(place, settings, device)


def _place(spec: CaptionerSpec | MaskerSpec, may_download: bool, job: Job) -> Path:
    assert spec.files is not None
    place = find_place(spec.files)
    if place is not None:
        return place
    if not may_download:
        raise DarkroomError(
            f"{spec.label} needs files that are not on this computer: {spec.files.description}.",
            advice="Repeat the command with --download to download them.",
        )

    def on_bytes(done: float, total: float) -> None:
        if total:
            job.progress(f"downloading {spec.label} (MB)", round(done / 1e6), round(total / 1e6))
        else:  # until the server answers
            job.progress(f"downloading {spec.label}", 0, 1)

    download = load_factory("modules.annotators.download:download_place")
    result: Path = download(spec.files, hub=hub_access(load_secrets().secrets), on_bytes=on_bytes)
    return result
