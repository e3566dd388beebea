"""The loop over the images of a folder: one after another, until all are done or the user stops."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from modules.data.archives import archive_of
from modules.data.images import BrokenImageError
from modules.data.listing import list_images
from modules.system.errors import DarkroomError
from trainer.annotation.events import AnnotationEvent, Finished, ImageDone, Outcome
from trainer.annotation.originals import Originals


class StoppedError(Exception):
    """The user stopped the work."""


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
    emit: Callable[[AnnotationEvent], None],
    originals: Originals,
    *,
    should_stop: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
) -> Finished:
    """Work on all images and return the summary, which is also the last event.

    An image that cannot be read or written is reported, and the next one follows. Stops before the next image. Raises
    DarkroomError where the model cannot be used.
    """
    images = images_of(work.folder, include_subfolders=work.include_subfolders)
    num_written = num_left = num_failed = num_worked = 0
    outcome: Outcome = "finished"
    began: float | None = None
    for number, image in enumerate(images, 1):
        if should_stop():
            outcome = "stopped"
            break
        done, problem = Done(has_written=False), work.is_left(image)
        if problem is None:
            try:
                done, problem = work.do(image), ""
            except StoppedError:
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
        emit(ImageDone(number, len(images), str(image), done.has_written, done.text, problem, left))
    finished = Finished(outcome, num_written, num_left, num_failed, str(originals.place or ""))
    emit(finished)
    return finished
