"""The job that writes masks for the images of a folder with a model."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from PIL import Image

from modules.annotators.protocol import Masker, MaskSettings
from modules.annotators.registry import MASKERS
from modules.annotators.results import MASK_MODES, MaskMode, combine_masks, draw_mask
from modules.data.companions import mask_paths
from modules.data.decode import flatten
from modules.data.images import open_image, upright
from modules.data.links import LEADS_OUT, leads_out
from modules.data.transforms.masks import Mask, as_mask
from modules.settings.field import Setting, one_of
from modules.system.atomic import write_bytes
from modules.system.paths import from_root
from trainer.job import Job
from trainer.job_events import JobFinished, JobStopped
from trainer.jobs.annotation import Annotation, Device, Download, Folder, Originals, Subfolders, Work, annotate
from trainer.jobs.spec import Argument, JobSpec


class MaskJob(MaskSettings):
    """The masks to write: for the images of a folder, by a model."""

    folder: Folder = ""
    model: Annotated[
        str,
        *one_of(lambda: {name: spec.label for name, spec in MASKERS.items()}),
        Setting("Model", "The masker."),
    ] = next(iter(MASKERS))
    mode: Annotated[
        MaskMode, Setting("Existing files", "What to do with existing masks.", choice_labels=MASK_MODES)
    ] = "skip"
    masks_folder: Annotated[
        str, Setting("Masks folder", "Write the masks here instead of next to the images.", path_kind="folder")
    ] = ""
    expand_px: Annotated[
        int,
        Setting("Expand by", "Grow the white on all sides; a negative number shrinks it.", "px"),
        Argument("--expand", "PX"),
    ] = 10
    smooth_px: Annotated[
        int, Ge(0), Setting("Smooth by", "Radius of the soft edge.", "px"), Argument("--smooth", "PX")
    ] = 5
    share: Annotated[float, Ge(0), Le(1), Setting("Strength", "How much of the new mask counts.")] = 1.0
    invert: Annotated[bool, Setting("Invert", "Mask out instead of in.")] = False
    include_subfolders: Subfolders = False
    device: Device = "auto"
    download: Download = False


MASK = JobSpec(
    "mask",
    "Automatic masks",
    "Write masks for the images of a folder with a model.",
    MaskJob,
    "trainer.jobs.mask:mask",
    "Writes a mask next to each image of a folder, as cat-masklabel.png next to cat.jpg. Existing masks stay, unless "
    "--mode is replace, add, subtract or blend; copies of the changed files are kept. The exit code is 1 if some "
    "images could not be done.",
    stopped="Stopped. The masks that were written stay.",
)


def mask(settings: MaskJob, job: Job) -> JobFinished | JobStopped:
    """Write the masks. Raises DarkroomError if the model cannot be used, and OSError."""
    spec, folder = MASKERS[settings.model], _masks_folder(settings)
    if settings.masks_folder:
        folder.mkdir(parents=True, exist_ok=True)
    return annotate(spec, settings, job, partial(mask_work, settings), folder=folder)


def mask_work(settings: MaskJob, load: Callable[[], Masker], originals: Originals) -> Work:
    """Return the work on each image; `load()` returns the masker, loaded when the first image needs it."""
    masker = cache(load)
    masks_folder = from_root(settings.masks_folder) if settings.masks_folder else None
    paths_of = partial(mask_paths, folder=from_root(settings.folder), masks_folder=masks_folder)

    def why_skipped(image: Path) -> str | None:
        paths = paths_of(image)
        if any(leads_out(path, _masks_folder(settings)) for path in paths):
            return LEADS_OUT
        return "" if settings.mode == "skip" and any(path.exists() for path in paths) else None

    def do(image: Path) -> Annotation:
        with open_image(image) as raw:
            rgb = flatten(upright(raw))
        new = draw_mask(
            masker().mask(rgb),
            threshold=settings.threshold,
            expand_px=settings.expand_px,
            smooth_px=settings.smooth_px,
            is_inverted=settings.invert,
        )
        path = paths_of(image)[0]
        mask = combine_masks(_old_mask(paths_of(image), rgb.size), new, settings.mode, share=settings.share)
        if mask is None:
            return Annotation(has_written=False)
        originals.keep(path)
        stream = io.BytesIO()
        Image.fromarray(mask).save(stream, "PNG")
        write_bytes(Path(os.path.realpath(path)), stream.getvalue())
        return Annotation(has_written=True)

    return Work("mask", from_root(settings.folder), settings.include_subfolders, why_skipped, do)


def _old_mask(paths: Sequence[Path], size: tuple[int, int]) -> Mask | None:
    """Return the mask of an image at its size (width, height), if it has one. Raises BrokenImageError."""
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    with open_image(path) as raw:
        mask = as_mask(upright(raw))
    return np.asarray(mask if mask.size == size else mask.resize(size, Image.Resampling.BILINEAR), np.uint8)


def _masks_folder(settings: MaskJob) -> Path:
    return from_root(settings.masks_folder or settings.folder)
