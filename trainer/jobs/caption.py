"""The job that writes captions for the images of a folder with a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Literal

from modules.annotators.protocol import Captioner, CaptionSettings
from modules.annotators.registry import CAPTIONERS
from modules.annotators.results import CAPTION_MODES, CaptionMode, merge_caption
from modules.data.captions.caption_file import CaptionFile, read_caption_file, with_text
from modules.data.decode import flatten
from modules.data.images import open_image, upright
from modules.data.links import LEADS_OUT, leads_out
from modules.settings.field import Setting, one_of
from modules.system.atomic import write_bytes
from modules.system.paths import from_root
from trainer.job import Job
from trainer.job_events import JobFinished, JobStopped
from trainer.jobs.annotation import Annotation, Device, Download, Folder, Originals, Subfolders, Work, annotate
from trainer.jobs.spec import JobSpec


class CaptionJob(CaptionSettings):
    """The captions to write: for the images of a folder, by a model."""

    folder: Folder = ""
    model: Annotated[
        str,
        *one_of(lambda: {name: spec.label for name, spec in CAPTIONERS.items()}),
        Setting("Model", "The captioner."),
    ] = next(iter(CAPTIONERS))
    mode: Annotated[
        CaptionMode, Setting("Existing files", "What to do with existing captions.", choice_labels=CAPTION_MODES)
    ] = "skip"
    extension: Annotated[Literal[".txt", ".caption"], Setting("Extension", "The ending of caption files.")] = ".txt"
    prefix: Annotated[str, Setting("Text before", "Put before each caption as it is, such as 'zog, '.")] = ""
    suffix: Annotated[str, Setting("Text after", "Put after each caption as it is.")] = ""
    include_subfolders: Subfolders = False
    device: Device = "auto"
    download: Download = False


CAPTION = JobSpec(
    "caption",
    "Automatic captions",
    "Write captions for the images of a folder with a model.",
    CaptionJob,
    "trainer.jobs.caption:caption",
    "Writes a caption next to each image of a folder. Existing captions stay, unless --mode is replace, new_line or "
    "append; copies of the changed files are kept. The exit code is 1 if some images could not be done.",
    stopped="Stopped. The captions that were written stay.",
)


def caption(settings: CaptionJob, job: Job) -> JobFinished | JobStopped:
    """Write the captions. Raises DarkroomError if the model cannot be used."""
    spec, folder = CAPTIONERS[settings.model], from_root(settings.folder)
    return annotate(spec, settings, job, partial(caption_work, settings), folder=folder)


def caption_work(settings: CaptionJob, load: Callable[[], Captioner], originals: Originals) -> Work:
    """Return the work on each image; `load()` returns the captioner, loaded when the first image needs it."""
    folder = from_root(settings.folder)

    def why_skipped(image: Path) -> str | None:
        if leads_out(_file_of(image, settings), folder):
            return LEADS_OUT
        try:
            file = read_caption_file(_file_of(image, settings))
        except OSError as error:
            return error.strerror or str(error)
        if file.text.strip() and settings.mode == "skip":
            return ""
        if not file.is_editable and settings.mode != "replace":
            return "its caption file is not valid text"
        return None

    captioner = cache(load)

    def do(image: Path) -> Annotation:
        with open_image(image) as raw:
            rgb = flatten(upright(raw))
        text = captioner().caption(rgb).strip()
        whole = f"{settings.prefix}{text}{settings.suffix}" if text else ""
        return _write(_file_of(image, settings), whole, settings.mode, originals)

    return Work("caption", folder, settings.include_subfolders, why_skipped, do)


def _write(path: Path, caption: str, mode: CaptionMode, originals: Originals) -> Annotation:
    """Write a caption; the file is read again, because it may have changed while the model ran."""
    file = read_caption_file(path)
    text = merge_caption(file, caption, mode)
    if text is None:
        return Annotation(has_written=False)
    originals.keep(path)
    # A replaced caption is written as plain UTF-8, whatever the old one was.
    base = file if file.is_editable and mode != "replace" else CaptionFile(None)
    write_bytes(Path(os.path.realpath(path)), with_text(base, text))
    return Annotation(has_written=True, text=text)


def _file_of(image: Path, settings: CaptionJob) -> Path:
    return image.with_name(image.stem + settings.extension)
