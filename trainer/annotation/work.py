"""The loop over the images of a folder: one after another, until all are done or the user stops."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modules.data.archives import archive_of
from modules.data.images import BrokenImageError
from modules.data.listing import list_images
from modules.system.errors import DarkroomError
from modules.system.problem import count
from trainer.annotation.originals import Originals
from trainer.commands import StopRequested
from trainer.job_events import ImageAnnotated, JobProgress
from trainer.tools.job import Job


@dataclass(frozen=True, slots=True)
class Done:
    """What was done with an image: whether a file was written, and the text in it."""

    has_written: bool
    text: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """What is done with the images of a folder.

    `is_left(image)` returns None for an image to work on, "" for one that stays as it is, else why it cannot be done;
    `do(image)` works on it, and raises OSError where that fails.
    """

    folder: Path
    include_subfolders: bool
    is_left: Callable[[Path], str | None]
    do: Callable[[Path], Done]


@dataclass(frozen=True, slots=True)
class Summary:
    """How the work ended. `kept_in` is the folder with copies of the replaced files, if there are any."""

    outcome: Literal["finished", "stopped"]
    num_written: int
    num_left: int
    num_failed: int
    kept_in: str = ""

    def words(self, what: str) -> str:
        """Return how it ended, as sentences; `what` is "captions" or "masks"."""
        parts = [f"{count(self.num_written, what.removesuffix('s'))} written"]
        if self.num_left:
            parts.append(f"{count(self.num_left, 'image')} left as they are")
        if self.num_failed:
            parts.append(f"{count(self.num_failed, 'image')} could not be done")
        stopped = "Stopped. " if self.outcome == "stopped" else ""
        kept = f" The files before are kept in {self.kept_in}." if self.kept_in else ""
        return f"{stopped}{', '.join(parts)}.{kept}"


def images_of(folder: Path, *, include_subfolders: bool) -> tuple[Path, ...]:
    """Return the image files of a folder, without those in archives. Raises DarkroomError without any."""
    try:
        listed = list_images(folder, include_subfolders=include_subfolders).images
    except OSError as error:
        raise DarkroomError(
            f"The folder {folder} cannot be read: {error.strerror or error}.", advice="Choose a folder of images."
        ) from error
    images = tuple(image for image in listed if archive_of(image) is None)
    if not images:
        raise DarkroomError(
            f"The folder {folder} contains no image files.", advice="Choose another folder, or include its subfolders."
        )
    return images


def carry_out(
    work: Work,
    job: Job,
    originals: Originals,
    *,
    what: str,
    clock: Callable[[], float] = time.monotonic,
) -> Summary:
    """Work on all images, report each, and return the summary. `what` is "captions" or "masks".

    An image that cannot be read or written is reported, and the next one follows. Stops before the next image. Raises
    DarkroomError where the model cannot be used.
    """
    images = images_of(work.folder, include_subfolders=work.include_subfolders)
    num_written = num_left = num_failed = num_worked = 0
    outcome: Literal["finished", "stopped"] = "finished"
    began: float | None = None
    for number, image in enumerate(images, 1):
        if job.desk.is_stop_requested:
            outcome = "stopped"
            break
        done, problem = Done(has_written=False), work.is_left(image)
        if problem is None:
            try:
                done, problem = work.do(image), ""
            except StopRequested:
                outcome = "stopped"
                break
            except OSError as error:
                problem = error.reason if isinstance(error, BrokenImageError) else error.strerror or str(error)
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
        job.emit(JobProgress(what, number, len(images), left))
    return Summary(outcome, num_written, num_left, num_failed, str(originals.place or ""))
